"""Processes, precision and sharding: checks that the launch matches the config, and distributes the model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    InitProcessGroupKwargs,
    broadcast_object_list,
    disable_fsdp_ram_efficient_loading,
    send_to_device,
)
from torch import Tensor, nn
from torch.distributed import ProcessGroup, new_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from worldmodel.device import Device, Precision, find_device, find_precision
from worldmodel.mcl.features import inner_backward

# Rank 0 writes checkpoints while the others wait; the default of 10 minutes is short for a full disk array.
COLLECTIVE_TIMEOUT = timedelta(hours=2)
Parallel = Literal["single", "ddp", "fsdp2"]
NO_GPU = (
    "the launch file is one for GPUs, and torch {} (CUDA: {}) finds none: the driver may be too old for "
    "this wheel (CUDA 13 needs 580 or newer; update it, or take one of an older CUDA); to train on the CPU, "
    "set machine.device=cpu"
)
IS_SYNCHRONIZED = "is_synchronized"  # attribute of a sharded model: whether gradients are exchanged now


@dataclass(frozen=True)
class MachineConfig:
    """The expected machine; a different launch is refused.

    The number of processes and the sharding of weights are set in the launch file and nowhere else; the first
    two settings only check them.
    """

    num_processes: int = 0  # required world size; 0 = any
    # auto: single for 1 process; for more fsdp2 if the launch file requests FSDP, else ddp
    parallel: Literal["auto", "single", "ddp", "fsdp2"] = "auto"  # how processes share the work
    mixed_precision: Precision = "auto"  # auto = bf16 on cuda, else no
    device: Device = "auto"  # auto (a GPU if there is one), cpu, cuda or mps
    find_unused_parameters: bool = False  # ddp: allow trained weights that a step does not touch (slower)

    def __post_init__(self) -> None:
        if self.num_processes < 0:
            raise ValueError(f"machine.num_processes must be >= 0, got {self.num_processes}")


def start_accelerator(config: MachineConfig) -> Accelerator:
    """Join the launched processes; ValueError if they differ from the config."""
    is_for_gpus = _launch_says("MIXED_PRECISION", "bf16") and not _launch_says("USE_CPU", "true")
    if config.device == "auto" and not torch.cuda.is_available() and is_for_gpus:
        raise ValueError(NO_GPU.format(torch.__version__, torch.version.cuda or "none"))
    device = find_device(config.device)
    AcceleratorState._reset_state()  # a run that ended in this process has fixed its precision
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision=find_precision(config.mixed_precision, device),
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                gradient_as_bucket_view=True, find_unused_parameters=config.find_unused_parameters
            ),
            InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
        ],
    )
    # Otherwise transformers fills the weights with zeros in all processes but one, for Accelerate's wrapper.
    disable_fsdp_ram_efficient_loading()
    _check_launch(config, accelerator)
    return accelerator


def _check_launch(config: MachineConfig, accelerator: Accelerator) -> None:
    found = accelerator.num_processes
    if config.num_processes and config.num_processes != found:
        raise ValueError(
            f"the config asks for machine.num_processes={config.num_processes}, but {found} "
            f"({accelerator.distributed_type.value}) joined. `accelerate launch --cpu` always starts "
            "one process: use `torchrun --nproc_per_node N` or `accelerate launch --multi_gpu`"
        )
    if accelerator.distributed_type not in (
        DistributedType.NO,
        DistributedType.MULTI_CPU,
        DistributedType.MULTI_GPU,
        DistributedType.FSDP,
    ):
        raise ValueError(
            f"launched as {accelerator.distributed_type.value}; this loop runs ddp or fsdp2 "
            "(configs/accelerate has a launch file for each)"
        )
    resolved = resolve_parallel(config, found)
    if (resolved == "single") != (found == 1):
        raise ValueError(
            f"the config asks for machine.parallel={config.parallel}, but {found} process(es) joined"
        )
    if _is_fsdp_launched() and resolved != "fsdp2":
        raise ValueError(
            f"the launch file asks for FSDP but the config for machine.parallel={config.parallel} "
            f"({resolved}): set machine.parallel=fsdp2 or launch with a ddp file"
        )


def resolve_parallel(config: MachineConfig, num_processes: int) -> Parallel:
    """Replace `auto` by the mode for this many processes."""
    if config.parallel != "auto":
        return config.parallel
    if num_processes == 1:
        return "single"
    return "fsdp2" if _is_fsdp_launched() else "ddp"


def _is_fsdp_launched() -> bool:
    return _launch_says("USE_FSDP", "true")


def _launch_says(setting: str, value: str) -> bool:
    return os.environ.get(f"ACCELERATE_{setting}", "").lower() == value


def describe_launch(accelerator: Accelerator, config: MachineConfig) -> str:
    """One line: world size, distributed type, device, precision."""
    return (
        f"{accelerator.num_processes} process(es), {accelerator.distributed_type.value}, "
        f"parallel {resolve_parallel(config, accelerator.num_processes)}, {accelerator.device.type}, "
        f"mixed precision {accelerator.mixed_precision}, {torch.get_num_threads()} thread(s) a process"
    )


def spread(model: nn.Module, accelerator: Accelerator, config: MachineConfig) -> nn.Module:
    """The model on this process's device, wrapped (ddp) or sharded in place (fsdp2)."""
    model.to(accelerator.device)
    parallel = resolve_parallel(config, accelerator.num_processes)
    if parallel == "ddp":
        wrapped = accelerator.prepare_model(model)
        assert isinstance(wrapped, DistributedDataParallel), type(wrapped)
        return wrapped
    if parallel == "fsdp2":
        shard(model, accelerator)
    return model


def shard(model: nn.Module, accelerator: Accelerator) -> None:
    """Apply `fully_shard` to every repeated block, then to the rest, on a mesh over all processes.

    Called directly instead of through Accelerate's plugin, which CPUs ignore silently: so GPU runs use the
    code path that is tested. Weights stay float32 and autocast computes in bf16, as with ddp.
    """
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for block in repeated_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def shard_group(config: MachineConfig, accelerator: Accelerator) -> ProcessGroup | None:
    """The processes that write a shard of each checkpoint, through the CPU; none: one process writes all."""
    if resolve_parallel(config, accelerator.num_processes) != "fsdp2":
        return None
    group: ProcessGroup = new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    return group


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks: instances of the classes that diffusers and transformers models name."""
    names = {
        name
        for module in model.modules()
        for name in (
            getattr(module, "_repeated_blocks", None) or getattr(module, "_no_split_modules", None) or ()
        )
    }
    return [module for module in model.modules() if type(module).__name__ in names]


@contextmanager
def gradient_sync(model: nn.Module, is_last: bool) -> Iterator[None]:
    """Exchange gradients between processes only in the last micro-batch of a step."""
    if isinstance(model, FSDPModule):
        setattr(model, IS_SYNCHRONIZED, is_last)
        model.set_requires_gradient_sync(is_last)
    if isinstance(model, DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
    else:
        yield


@contextmanager
def differentiable_inside(model: nn.Module) -> Iterator[None]:
    """Inside this block, the forward pass of a sharded model may compute input derivatives (MCL)."""
    if not isinstance(model, FSDPModule):
        yield
        return
    before = inner_backward.set(partial(_leave_no_trace, model))
    try:
        yield
    finally:
        inner_backward.reset(before)


@contextmanager
def _leave_no_trace(model: FSDPModule) -> Iterator[None]:
    """For a backward pass to an input only, inside a forward pass.

    When it ends, it must neither reduce gradients of the step nor reshard the weights outside the blocks,
    which the forward pass still needs.
    """
    model.set_is_last_backward(False)
    model.set_requires_gradient_sync(False)
    model.set_reshard_after_backward(False, recurse=False)
    try:
        yield
    finally:
        model.set_is_last_backward(True)
        model.set_requires_gradient_sync(getattr(model, IS_SYNCHRONIZED, True))
        model.set_reshard_after_backward(True, recurse=False)


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Inside this block, submodules of a sharded model can be called directly, as validation does."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.set_reshard_after_backward(False, recurse=False)
        module.unshard()
    try:
        with differentiable_inside(model):
            yield
    finally:
        for module in sharded:
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.set_reshard_after_backward(True, recurse=False)
            module.reshard()


def clip_gradients(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Clip and return the total gradient norm before clipping, the same on every process.

    Max_norm 0 only measures.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm or float("inf"))
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def move(batch: Any, device: torch.device) -> Any:
    """A batch on another device: anything with `.to`, or tuples, lists and dicts of tensors."""
    if hasattr(batch, "to"):
        return batch.to(device)
    return send_to_device(batch, device)


def agreed(problem: str | None, accelerator: Accelerator) -> str | None:
    """Broadcast the main process's problem, so that either all processes raise or none."""
    if accelerator.num_processes == 1:
        return problem
    return broadcast_object_list([problem])[0]
