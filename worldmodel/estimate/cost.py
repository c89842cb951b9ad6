"""What a training run will need, before anything is loaded: parameters, memory by part, step and total time.

memory per GPU   weights + gradients + optimizer + moving average, from parameter counts (divided by the
                 number of GPUs under fsdp2), and activations, from a step traced on tensors without storage
time of a step   FLOPs of the traced step, over all micro-batches / (GPUs * peak FLOP/s * utilization)
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from torch import Tensor, nn

from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.estimate.known_shapes import known_vae, local_config, num_text_tokens, with_known_shapes
from worldmodel.estimate.step_trace import TRACED_BLOCKS, Stack, StepTrace, trace_step
from worldmodel.estimate.streaming import StreamCost, stream_cost
from worldmodel.mcl.rows import few_rows
from worldmodel.models.actions.protocol import blank_extras
from worldmodel.models.backbone import DTYPES, checkpoint_blocks, load_wan
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import VideoAutoencoder
from worldmodel.objectives.training_step import world_model_step
from worldmodel.types import ClipBatch

GIB = 2**30
# Shares of the peak rate that training of diffusion transformers reaches; the middle one is used.
UTILIZATION = (0.25, 0.35, 0.45)
OPTIMIZER_BYTES = 8  # AdamW keeps two float32 moments per trained parameter
EMA_BYTES = 4  # float32
STREAM_STEPS = (1, 2, 4)  # sampling steps of a stream whose speed is told


@dataclass(frozen=True)
class Device:
    """One accelerator as its data sheet gives it."""

    name: str
    peak_flops: float  # dense bfloat16 operations per second
    memory: float  # GiB; 0 = not known
    reserve: float  # GiB for the driver's context, kernels and the allocator's gaps
    bandwidth: float  # of its memory, bytes per second


DEVICES = {
    device.name: device
    for device in (
        Device("H100", 989e12, 80.0, 3.0, 3.35e12),
        Device("H200", 989e12, 141.0, 3.0, 4.8e12),
        Device("A100", 312e12, 80.0, 3.0, 2.0e12),
        Device("L40S", 362e12, 48.0, 2.0, 0.864e12),
        Device("RTX4090", 165e12, 24.0, 1.5, 1.008e12),
        # One core with AVX-512 in float32; small matrices reach about 40 GFLOP/s of it.
        Device("CPU", 115e9, 0.0, 0.0, 10e9),
    )
}


@dataclass(frozen=True)
class RunShape:
    """The part of a training config that decides what it costs."""

    model: WorldModelConfig
    contract: InputSpec
    action_dim: int  # action dimensions after padding to the common width
    num_embodiments: int
    steps: int
    global_batch: int
    micro_batch: int
    gradient_checkpointing: bool
    has_ema: bool
    has_autocast: bool  # compute in bfloat16
    parallel: Literal["single", "ddp", "fsdp2"]


@dataclass(frozen=True)
class Estimate:
    """Costs of a run; bytes are per GPU."""

    num_parameters: int
    num_trained: int
    memory: dict[str, int]  # part -> bytes
    modulation_bytes: int  # AdaLN tensors among the activations, at most
    activations: dict[str, int]  # "plain" and, where it works, "checkpointed" -> bytes
    mcl_memory_factor: float  # activations with MCL over activations without; 1 when it is off
    mcl_work_factor: float  # FLOPs with MCL over FLOPs without
    step_flops: int  # one optimizer step, all GPUs
    step_seconds: tuple[float, float, float]  # slow, expected, fast: by UTILIZATION
    total_hours: float  # at the expected utilization
    stream: StreamCost | None = None  # of a causal model
    rollout_bytes: int = 0  # weights and one network call on a clip, without the autoencoder's own work

    @property
    def total_bytes(self) -> int:
        """Highest need of one GPU, without the device's reserve."""
        return sum(self.memory.values())


def parse_gpus(text: str) -> tuple[int, Device]:
    """'4xH100' -> (4, H100)."""
    count, cross, name = text.partition("x")
    if not cross or not count.isdigit() or int(count) < 1 or name not in DEVICES:
        raise ValueError(f"GPUs are given as NxNAME with NAME one of {', '.join(DEVICES)}; got {text!r}")
    return int(count), DEVICES[name]


def estimate(run: RunShape, num_gpus: int, device: Device, *, with_other: bool = True) -> Estimate:
    """All figures of one run; `with_other` also the activations with and without checkpointing."""
    run = replace(run, model=with_known_shapes(run.model))
    num_slots = run.global_batch // run.micro_batch
    if num_slots % num_gpus or (run.parallel == "single" and num_gpus > 1):
        raise ValueError(
            f"{num_slots} micro-batches of a step with parallel={run.parallel} "
            f"cannot be shared by {num_gpus} GPUs"
        )
    _check_rows(run)
    counts = _count(run)
    # Gradients stay from one micro-batch to the next, and in the buckets of ddp; else they come and go.
    is_accumulating = run.parallel != "single" or num_slots > num_gpus
    freed = 0 if is_accumulating else counts.gradient_bytes

    def trace(run: RunShape) -> tuple[int, StepTrace]:
        # What a trace does not depend on is left out: trainings of one model share theirs.
        traced = _kept_trace(replace(run, steps=0, global_batch=0, has_ema=False), is_accumulating)
        return max(traced.peak_bytes - freed, 0), traced

    activation_bytes, step = trace(run)
    plain_bytes, plain = (
        trace(replace(run, model=replace(run.model, mcl=None))) if run.model.mcl else (activation_bytes, step)
    )
    other = replace(run, gradient_checkpointing=not run.gradient_checkpointing)
    activations = {_label(run): activation_bytes}
    if with_other and (run.gradient_checkpointing or _can_checkpoint(run.model)):
        activations[_label(other)] = trace(other)[0]
    seconds = [step.flops * num_slots / (num_gpus * device.peak_flops * share) for share in UTILIZATION]
    return Estimate(
        num_parameters=counts.all,
        num_trained=counts.trained,
        memory=_memory(run, counts, activation_bytes, num_gpus),
        modulation_bytes=step.modulation_bytes,
        activations=activations,
        mcl_memory_factor=activation_bytes / max(plain_bytes, 1),
        mcl_work_factor=step.flops / plain.flops,
        step_flops=step.flops * num_slots,
        step_seconds=(seconds[0], seconds[1], seconds[2]),
        total_hours=run.steps * seconds[1] / 3600,
        stream=_stream(run) if run.model.causal else None,
        rollout_bytes=counts.weight_bytes + _call_bytes(run) if with_other else 0,
    )


def _call_bytes(run: RunShape) -> int:
    """Activations of a network call on one clip without gradients."""
    model = replace(run.model, mcl=None)
    one = replace(run, model=model, micro_batch=1, gradient_checkpointing=False)

    def step(model: WorldModel) -> Tensor:
        with torch.no_grad():
            return _step(one, model)

    build, stacks = partial(_build, _shallow(one)), partial(_stacks, one)
    traced = trace_step(build, step, autocast=run.has_autocast, is_accumulating=False, stacks=stacks)
    return traced.peak_bytes


def _check_rows(run: RunShape) -> None:
    """Refuse a contrast of more rows than a step has."""
    mcl = run.model.mcl
    if mcl is not None and mcl.rows:
        frames = run.contract.latent_grid[0] - run.model.history
        slots = run.global_batch // run.micro_batch
        count = slots * mcl.num_clips(run.micro_batch) * (1 if mcl.latent == "history" else frames)
        if count < mcl.rows:
            raise ValueError(few_rows(mcl.rows, count))


def _can_checkpoint(model: WorldModelConfig) -> bool:
    """Whether gradient checkpointing works: not through forward-mode derivatives."""
    return model.mcl is None or model.mcl.mode != "jvp"


def needs_checkpointing(run: RunShape, num_gpus: int, device: Device) -> bool:
    """Whether a step fits the device with gradient checkpointing only; never where its memory is unknown."""
    if not device.memory or not _can_checkpoint(run.model):
        return False
    plain = replace(run, gradient_checkpointing=False)
    return not _fits(estimate(plain, num_gpus, device, with_other=False), device)


def _fits(result: Estimate, device: Device) -> bool:
    return not device.memory or result.total_bytes / GIB + device.reserve <= device.memory


def check_memory(result: Estimate, device: Device) -> None:
    """Refuse a run that does not fit the device."""
    needed = result.total_bytes / GIB + device.reserve
    if not _fits(result, device):
        raise ValueError(
            f"one {device.name} has {device.memory:g} GiB, this run needs {needed:.1f}: set "
            "fit.gradient_checkpointing=true, lower fit.micro_batch, take more GPUs with fsdp2, or adapters "
            "(model.lora.rank); with mcl, mode first_order and a share below 1 need least"
        )


def describe(result: Estimate, num_gpus: int, device: Device) -> list[str]:
    """The figures in words, with the formulas they come from."""
    lines = [
        f"parameters   {result.num_parameters:,}, of which {result.num_trained:,} are trained",
        f"memory per {device.name}, GiB",
        *(f"  {name:<17}{size / GIB:8.2f}" for name, size in result.memory.items()),
        f"  {'reserve':<17}{device.reserve:8.2f}   driver, kernels, gaps of the allocator (assumed)",
        f"  {'sum':<17}{result.total_bytes / GIB + device.reserve:8.2f}"
        + (f"   of {device.memory:g}" if device.memory else ""),
        "  activations of one micro-batch: "
        + ", ".join(f"{size / GIB:.2f} {name}" for name, size in result.activations.items())
        + f"; AdaLN tensors among them at most {result.modulation_bytes / GIB:.2f}",
    ]
    if result.mcl_work_factor != 1:
        lines.append(
            f"MCL          {result.mcl_work_factor:.2f} x the operations and "
            f"{result.mcl_memory_factor:.2f} x the activations of the same run without it"
        )
    lines.append(
        f"rollout      {result.rollout_bytes / GIB:.2f} GiB for one clip: weights and one network call, "
        "without encoding and decoding"
    )
    slow, expected, fast = result.step_seconds
    if result.stream is not None:
        lines += _describe_stream(result.stream, device)
    return [
        *lines,
        f"step         {expected:.3g} s = {result.step_flops:.3g} FLOP / ({num_gpus} x "
        f"{device.peak_flops:.3g} FLOP/s x {UTILIZATION[1]}); {fast:.3g} to {slow:.3g} s at {UTILIZATION[2]} "
        f"to {UTILIZATION[0]} of the peak",
        f"whole run    {result.total_hours:.3g} h, {result.total_hours * num_gpus:.3g} GPU hours",
    ]


def _describe_stream(cost: StreamCost, device: Device) -> list[str]:
    """Frames per second of one video on one device, with the formula."""
    rate = device.peak_flops * UTILIZATION[1]
    fps = [f"{cost.frames_per_second(n, rate, device.bandwidth):.3g} in {n}" for n in STREAM_STEPS]
    return [
        f"streaming    frames per second on one {device.name}, by sampling steps: {', '.join(fps)}",
        f"             4 frames = {cost.first_flops:.3g} FLOP, {cost.further_flops:.3g} for a further step, "
        f"{cost.decoder_flops:.3g} to decode, over {device.peak_flops:.3g} FLOP/s x {UTILIZATION[1]};",
        f"             a network call takes at least {cost.weight_bytes:.3g} bytes of weights / "
        f"{device.bandwidth:.3g} bytes/s",
    ]


def _stream(run: RunShape) -> StreamCost:
    with torch.device("meta"):
        model = _build(
            replace(run, model=replace(run.model, dtype="bfloat16" if run.has_autocast else "float32"))
        )
        vae = _empty_vae(run.model.vae) if run.model.vae else None
        return stream_cost(model, vae)


def _label(run: RunShape) -> str:
    return "checkpointed" if run.gradient_checkpointing else "plain"


@dataclass(frozen=True)
class _Counts:
    all: int
    trained: int
    weight_bytes: int
    gradient_bytes: int
    gathered_bytes: int  # fsdp2: what is whole at one time, everything outside the blocks and two blocks


def _count(run: RunShape) -> _Counts:
    with torch.device("meta"):
        model = _build(run)
    parameters = [*model.parameters(), *_vae_parameters(run.model.vae)]
    blocks = sum(p.nbytes for p in model.fdm.backbone.blocks.parameters())
    everything = sum(p.nbytes for p in parameters)
    two_blocks = 2 * blocks // run.model.backbone.num_layers
    return _Counts(
        all=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        weight_bytes=everything,
        gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
        gathered_bytes=everything - blocks + two_blocks,
    )


def _memory(run: RunShape, counts: _Counts, activation_bytes: int, num_gpus: int) -> dict[str, int]:
    parts = {
        "weights": counts.weight_bytes,
        "gradients": counts.gradient_bytes,
        "optimizer": OPTIMIZER_BYTES * counts.trained,
        "moving average": EMA_BYTES * counts.trained * run.has_ema,
    }
    if run.parallel == "fsdp2":
        parts = {name: size // num_gpus for name, size in parts.items()}
        parts["gathered weights"] = counts.gathered_bytes
    return {**parts, "activations": activation_bytes}


def _vae_parameters(source: str) -> list[nn.Parameter]:
    """The frozen autoencoder, which stays loaded for validation; a hub id means Wan's own."""
    return list(_empty_vae(source).requires_grad_(False).parameters()) if source else []


def _empty_vae(source: str) -> VideoAutoencoder:
    config = local_config(source, "vae")
    with torch.device("meta"):
        if config is not None and config["_class_name"] == CausalAutoencoder.__name__:
            return CausalAutoencoder.from_config(config)
        return AutoencoderKLWan.from_config(config or known_vae(source))


@lru_cache(maxsize=32)
def _kept_trace(run: RunShape, is_accumulating: bool) -> StepTrace:
    return _trace(run, is_accumulating)


def _trace(run: RunShape, is_accumulating: bool) -> StepTrace:
    """The traced step; deep stacks are traced with few blocks and counted with all."""
    shallow = _shallow(run)
    return trace_step(
        partial(_build, shallow),
        partial(_step, shallow),
        autocast=run.has_autocast,
        is_accumulating=is_accumulating,
        stacks=partial(_stacks, run),
    )


def _shallow(run: RunShape) -> RunShape:
    """The run with no more blocks than are traced."""
    backbone, idm = run.model.backbone, run.model.idm
    backbone = replace(backbone, num_layers=min(backbone.num_layers, TRACED_BLOCKS))
    idm = replace(idm, encoder_layers=min(idm.encoder_layers, TRACED_BLOCKS))
    return replace(run, model=replace(run.model, backbone=backbone, idm=idm))


def _stacks(run: RunShape, shallow: WorldModel) -> list[Stack]:
    """Repeated blocks of the shallow model, with the number of further ones in the full run."""
    blocks = [(list(shallow.fdm.backbone.blocks), run.model.backbone.num_layers)]
    if shallow.idm is not None:
        blocks.append((list(shallow.idm.encoder.encoder.layer), run.model.idm.encoder_layers))
    return [Stack(some, num_layers - len(some)) for some, num_layers in blocks]


def _build(run: RunShape) -> WorldModel:
    zeros, names = (0.0,) * run.action_dim, tuple(f"a{i}" for i in range(run.action_dim))
    stats = ActionStats(names, zeros, zeros, zeros, zeros, 1)
    normalizer = ActionNormalizer({f"robot{i}": stats for i in range(run.num_embodiments)})
    # Without pictures: what a loss on decoded frames, a compositor and a picture head need is not counted.
    config = replace(run.model, vae="", prompt="", trained="all")
    config = replace(config, compositor_width=0, hand_references=0, sharpen=0.0, head=None)
    config = replace(config, objective=replace(config.objective, pixel_weight=0.0))
    text = torch.zeros(1, num_text_tokens(run.model), run.model.backbone.text_dim)
    backbone = load_wan(config.backbone, DTYPES[config.dtype])
    model = WorldModel(config, run.contract, normalizer, backbone, None, text)
    model.freeze_untrained()
    if run.gradient_checkpointing:
        checkpoint_blocks(model)
    if config.mcl is not None and config.mcl.needs_math_attention:
        backbone.set_attention_backend("_native_math")
    return model


def _step(run: RunShape, model: WorldModel) -> Tensor:
    contract, batch = run.contract, run.micro_batch
    needs_frames = model.idm is not None
    shape = (batch, contract.num_frames, 3, contract.height, contract.width)
    clips = ClipBatch(
        robot_actions=torch.zeros(batch, contract.num_frames - 1, run.action_dim),
        action_mask=torch.ones(batch, run.action_dim, dtype=torch.bool),
        embodiment=torch.zeros(batch, dtype=torch.int64),
        sources=("traced",) * batch,
        frames=torch.zeros(shape, dtype=torch.uint8) if needs_frames else None,
        latents=torch.zeros(batch, contract.latent_channels, *contract.latent_grid),
        extras=blank_extras(run.model.actions.row_shapes, batch, contract.num_frames - 1),
    )
    if run.model.mcl is not None and run.model.mcl.rows:  # the pass that collects the rows
        with torch.no_grad():
            world_model_step(model, clips, torch.Generator())
    return world_model_step(model, clips, torch.Generator()).total
