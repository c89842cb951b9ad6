"""Two processes contrast as one: the same loss and the same gradients at equal global batch."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.distributed.tensor import DTensor

from worldmodel.files import read_tensors, write_tensors
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.backbone import checkpoint_blocks
from worldmodel.models.config import ObjectiveConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives import training_step as objective
from worldmodel.training.loop.distributed import MachineConfig, spread
from worldmodel.training.loop.step import Stepper
from worldmodel.types import ClipBatch

# Sums over processes are taken in another order, and differences of gradients magnify that by 1 / step.
TOLERANCE = 2e-3
draw_noise = objective._noisy_clip


def noise_of_two(model: WorldModel, batch: ClipBatch, generator: torch.Generator) -> objective.NoisyClip:
    """The noise that two processes give their halves of a batch, for one process with all of it."""
    half = batch.batch_size // 2
    parts = [draw_noise(model, batch[rank * half :][:half], source(rank)) for rank in range(2)]
    joined = {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(objective.NoisyClip)
        if isinstance(getattr(parts[0], field.name), Tensor)
    }
    return objective.NoisyClip(**{**vars(parts[0]), **joined})


def source(rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(rank)


def gradients(model: WorldModel, stepper: torch.nn.Module, batch: ClipBatch, rank: int) -> dict[str, Tensor]:
    losses = stepper(batch, source(rank))
    losses.total.backward()
    found = {
        name: (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad)
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    return found | {"loss.mcl": losses.parts["mcl"].clone()}


def run_rank(rank: int, port: int, model: WorldModel, batch: ClipBatch, parallel: str, file: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    )
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    accelerator = Accelerator(cpu=True)
    checkpoint_blocks(model)
    stepper = spread(
        Stepper(model, objective.world_model_step), accelerator, MachineConfig(parallel=parallel)
    )
    half = batch.batch_size // 2
    found = gradients(model, stepper, batch[rank * half :][:half], rank)
    if rank == 0:
        write_tensors(file, found)
    torch.distributed.barrier()
    os._exit(0)  # taking the group apart waits for ever where the other process has gone already


def two_processes(model: WorldModel, batch: ClipBatch, parallel: str, file: Path) -> dict[str, Tensor]:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    # Not forked from here: what has computed with several threads leaves locks behind, on which a copy waits.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["accelerate", "worldmodel.objectives.training_step"])
    ranks = [
        context.Process(target=run_rank, args=(rank, port, model, batch, parallel, file)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    assert [process.exitcode for process in ranks] == [0, 0]
    return read_tensors(file)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
@pytest.mark.parametrize("latent", ["noisy", "history"])
def test_two_processes_contrast_as_one(
    make_world_model: Callable[..., WorldModel],
    batch: ClipBatch,
    randomize: Callable[[torch.nn.Module], None],
    parallel: str,
    latent: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Steps of 0.1: sums in another order move gradients by less than their difference.
    mcl = ActionMclConfig(mode="first_order", latent=latent, difference="central", step=0.1)
    objectives = ObjectiveConfig(idm_weight=0.0, action_dropout=0.0, mcl_weight=1.0)
    model = make_world_model(regime="acg", mcl=mcl, objective=objectives).train()
    randomize(model.interface)
    two = two_processes(model, batch, parallel, tmp_path / "two.safetensors")
    checkpoint_blocks(model)
    monkeypatch.setattr(objective, "_noisy_clip", noise_of_two)
    one = gradients(model, Stepper(model, objective.world_model_step), batch, 0)
    assert two.keys() == one.keys()
    assert two.pop("loss.mcl") == pytest.approx(one.pop("loss.mcl").item(), rel=1e-5)
    for name in one:
        assert (two[name] - one[name]).norm() <= TOLERANCE * one[name].norm() + 1e-7, name
