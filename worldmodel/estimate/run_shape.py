"""The settings of a training config that determine its cost; opens neither data nor weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from worldmodel.config import load_config
from worldmodel.estimate.cost import Device, RunShape, needs_checkpointing
from worldmodel.estimate.known_shapes import latent_layout, local_config
from worldmodel.models.config import InputSpec
from worldmodel.training.loop.distributed import resolve_parallel
from worldmodel.training.world_model import TrainConfig, load_train_config


def load_run(path: str, overrides: Sequence[str]) -> TrainConfig:
    """A training config; a model folder that it starts from stands for its backbone and autoencoder."""
    config = load_config(TrainConfig, path, overrides)
    if not config.start_from or not Path(config.start_from, "transformer").is_dir():
        return config
    model = load_train_config(path, overrides).model
    return replace(
        config, start_from="", model=replace(model, pretrained=config.start_from, vae=config.start_from)
    )


def run_shape(config: TrainConfig, num_gpus: int, device: Device, action_dim: int) -> RunShape:
    """The cost-relevant settings of a run on these GPUs; frame rate and number of robots do not matter."""
    if config.start_from:
        raise ValueError(
            f"start_from={config.start_from}: name a local folder that holds its backbone, or leave it out "
            "of the command: a run costs what its first training costs"
        )
    clip, machine = config.data.clip, config.fit.machine
    if machine.num_processes not in (0, num_gpus):
        raise ValueError(f"the config asks for {machine.num_processes} processes, --gpus for {num_gpus}")
    model, (channels, scale) = config.model, latent_layout(config.model.vae)
    if _is_to_be_made(config) and channels != model.backbone.latent_channels:
        # The autoencoder is not trained yet: its own cost is not counted.
        model, channels = replace(model, vae=""), model.backbone.latent_channels
    is_cpu = device.name == "CPU"
    shape = RunShape(
        model=model,
        contract=InputSpec(
            clip.num_frames, clip.height, clip.width, 1.0, latent_channels=channels, latent_scale=scale
        ),
        action_dim=action_dim,
        num_embodiments=2,
        steps=config.fit.steps,
        global_batch=config.fit.global_batch,
        micro_batch=config.fit.micro_batch,
        gradient_checkpointing=config.fit.gradient_checkpointing is True,
        has_ema=config.fit.optim.ema_decay > 0,
        has_autocast=machine.mixed_precision == "bf16" or (machine.mixed_precision == "auto" and not is_cpu),
        parallel=resolve_parallel(machine, num_gpus),
    )
    if config.fit.gradient_checkpointing == "auto":
        shape = replace(shape, gradient_checkpointing=needs_checkpointing(shape, num_gpus, device))
    return shape


def _is_to_be_made(config: TrainConfig) -> bool:
    return not config.model.pretrained and local_config(config.model.vae, "vae") is None


def assumption(config: TrainConfig) -> str:
    """The assumption of the estimate about an autoencoder that does not exist yet; empty if there is none."""
    vae, (channels, scale) = config.model.vae, latent_layout(config.model.vae)
    if not vae or not _is_to_be_made(config) or channels == config.model.backbone.latent_channels:
        return ""
    return f"{vae} is not there yet: the estimate takes {scale} x {scale} pixels for a latent"
