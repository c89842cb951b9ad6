"""Train an autoencoder: worldmodel train-autoencoder configs/desk/streaming_autoencoder.yaml ...

The linear path starts from a PCA of the training frames (seconds), then both directions are refined.
The result, with its latent statistics, is the folder OUTPUT/vae that `model.vae` of a world model names.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from worldmodel.cli_errors import one_way_out
from worldmodel.config import save_config
from worldmodel.data.dataset import ClipDataset, collate_clips
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.files import check_apart
from worldmodel.objectives.pictures import picture_loss
from worldmodel.training.command_line import run_script
from worldmodel.training.datasets import DataConfig, open_clips, open_index
from worldmodel.training.loop.checkpoints import open_store
from worldmodel.training.loop.distributed import start_accelerator
from worldmodel.training.loop.fit import FitConfig, fit
from worldmodel.types import ClipBatch, Losses, evenly_spread

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AutoencoderConfig:
    """The desk autoencoder and its training."""

    output: str = "outputs/autoencoder"  # folder of checkpoints and curves; the result is its sub-folder vae
    latent_channels: int = 16  # channels of a latent
    latent_scale: int = 4  # pixels per latent and side
    hidden: int = 64  # channels of the refining convolutions
    num_blocks: int = 2  # residual blocks per direction and scale
    num_scales: int = 1  # convolutions at the size of the latents (1), or on 2x2 pixels as well (2)
    num_initial_clips: int = 64  # clips for the PCA and the latent statistics
    moving_weight: float = 5.0  # weight of pixels that differ from the clip's first frame; others count 1
    edge_weight: float = 0.3  # weight of the error in the images' Laplacian, which keeps edges sharp
    data: DataConfig = field(default_factory=DataConfig)
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        self.data.check_given()


def to_video(batch: ClipBatch) -> Tensor:
    """Frames in the autoencoder's format: b 3 t H W in [-1, 1]."""
    assert batch.frames is not None
    return batch.frames.movedim(1, 2).float() / 127.5 - 1


def initial_video(clips: ClipDataset, count: int) -> Tensor:
    """Clips evenly spaced over the training data."""
    chosen = evenly_spread(len(clips), count, round_down=True)
    return to_video(collate_clips([clips[number] for number in chosen]))


def new_autoencoder(config: AutoencoderConfig, start: Tensor) -> CausalAutoencoder:
    """A new autoencoder whose linear path is the PCA of these clips."""
    model = CausalAutoencoder(
        height=config.data.clip.height,
        width=config.data.clip.width,
        z_dim=config.latent_channels,
        scale_factor_spatial=config.latent_scale,
        hidden=config.hidden,
        num_blocks=config.num_blocks,
        num_scales=config.num_scales,
        latents_mean=(0.0,) * config.latent_channels,
        latents_std=(1.0,) * config.latent_channels,
    )
    model.initialize_from(start)
    return model


def train(config: AutoencoderConfig, resume: bool) -> bool:
    """Build from data, fit, save; returns False if a signal stopped it early."""
    accelerator = start_accelerator(config.fit.machine)
    check_apart(config.output, *config.data.paths)
    open_store(Path(config.output), accelerator, resume, config.fit.keep_checkpoints)
    index = open_index(config.data)
    log.info("%s\n%s", index.summary(), index.camera_summary())
    clips = open_clips(config.data, index, "train", index.normalizer(), None, with_frames=True)
    torch.manual_seed(config.fit.seed)
    start = initial_video(clips, config.num_initial_clips)
    model = new_autoencoder(config, start)

    def step(model: CausalAutoencoder, batch: ClipBatch, generator: torch.Generator) -> Losses:
        video = to_video(batch)
        rebuilt = model.decode(model.encode(video).latent_dist.mode()).sample
        loss = picture_loss(
            rebuilt, video, moving_weight=config.moving_weight, edge_weight=config.edge_weight
        )
        return Losses(loss, {"mse": (rebuilt - video).square().mean().detach() / 4})

    network: nn.Module = model  # type: ignore[assignment]  # diffusers' models have no types
    result = fit(
        step, network, clips, config.fit, Path(config.output), resume=resume, accelerator=accelerator
    )
    if result.is_finished and accelerator.is_main_process:
        model.eval().to("cpu")
        model.set_latent_statistics(start)
        model.save_pretrained(Path(config.output) / "vae")
        save_config(config, Path(config.output) / "config.yaml")
    return result.is_finished


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(AutoencoderConfig, train, __doc__ or "", argv)
