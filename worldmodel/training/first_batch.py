"""A video of the clips and actions of the first batch, written before training starts."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from robotwin_adapters.tools.contact_sheet import write_action_video
from worldmodel.data.dataset import ClipDataset
from worldmodel.models.model import WorldModel
from worldmodel.training.loop.fit import FitConfig
from worldmodel.training.loop.order import micro_batches
from worldmodel.types import Clip, Episode

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClipFrames:
    """The frames of a clip as a FrameReader."""

    images: UInt8[np.ndarray, "t H W 3"]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.images.shape[1], self.images.shape[2]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The frames at these positions."""
        return self.images[list(indices)]


def write_first_batch(
    path: Path, model: WorldModel, clips: ClipDataset, fit: FitConfig, num_clips: int
) -> None:
    """Write an mp4 of the first clips of step 0 as the model gets them: its size, rate and scaled actions.

    Clips from the latent cache are decoded if they have no frames. Hand poses, for a model that draws them,
    are shown as dots on the frames they lead to. An existing file is kept.
    """
    if not num_clips or path.exists():
        return
    num_slots = fit.global_batch // fit.micro_batch
    numbers = next(micro_batches(len(clips), fit.micro_batch, num_slots, range(num_slots), fit.seed, 0))
    episodes = [_as_episode(clips[number], model) for number in numbers[:num_clips]]
    try:
        write_action_video(path, episodes)
    except OSError as error:  # a failed video must not end a run
        log.warning("%s was not written: %s", path, error)
        return
    log.info("%s shows %d clips of the first batch with their actions", path, len(episodes))


def _as_episode(clip: Clip, model: WorldModel) -> Episode:
    embodiment = model.normalizer.embodiments[clip.embodiment]
    return Episode(
        uid=Path(clip.source).name,
        source=clip.source,
        frames={model.contract.camera: ClipFrames(_images(clip, model))},
        robot_actions=clip.robot_actions[:, clip.action_mask].double().numpy(),
        action_names=model.normalizer.stats[embodiment].names,
        fps=model.contract.fps,
        embodiment=embodiment,
        task=f"{embodiment}, scaled to [-1, 1]",
    )


def _images(clip: Clip, model: WorldModel) -> UInt8[np.ndarray, "t H W 3"]:
    frames = clip.frames
    if frames is None:
        assert clip.latents is not None, "a clip has frames, latents or both"
        assert model.vae is not None, "a world model in training has an autoencoder"
        decoded = model.decode(clip.latents[None].float().to(model.vae.device))[0]
        frames = (decoded * 255).round().to(torch.uint8).cpu()
    images = frames.permute(0, 2, 3, 1).contiguous().numpy()
    for path in model.config.actions.paths().values():
        images = path.mark(images, clip.extras)
    return images
