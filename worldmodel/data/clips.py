"""Cuts clips out of episodes: which frames, which actions, at which size.

A clip frame may represent several recorded frames (`stride`, or resampling to `fps`). The action of the
coarser transition is computed from the recorded actions inside it, and so leads from one clip frame to the
next:

    recorded frame    0   1   2   3   4   5   6        stride 2
    recorded action     0   1   2   3   4   5          action i leads from frame i to frame i + 1
    clip frame        0       1       2       3
    "last"               1       3       5             absolute commands: the one in force at the next frame
    "sum"               0+1     2+3     4+5            deltas: the whole displacement of the interval
    "auto"          sum of the delta dimensions (`action_deltas.py`), last of the others

Resampling from 30 to 20 frames per second uses recorded frames 0, 2, 3, 5, ... (nearest to 1.5 k, half up).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from worldmodel.checked import check_range, check_ranges
from worldmodel.data.cameras import find_views
from worldmodel.data.layouts import Layout, compose, view_boxes
from worldmodel.types import Episode, num_latent_frames

# Frame rates are often rounded labels (16.67, 29.97): a ratio this near to a whole number is that number.
FPS_TOLERANCE = 0.01
Aspect = Literal["stretch", "crop"]
Merge = Literal["auto", "last", "sum"]


@dataclass(frozen=True)
class ClipConfig:
    """What a clip is: length, rate, size, camera, and how far apart clips start."""

    num_frames: int = 17  # frames T of a clip, 4 (F - 1) + 1
    stride: int = 1  # recorded frames per clip frame
    fps: float | None = None  # resample to this many frames per second instead of using stride
    step: int | None = None  # recorded frames between clip starts; none: clips share only their end frame
    height: int = 64  # pixels
    width: int = 64  # pixels
    aspect: Aspect = "stretch"  # for another aspect ratio: distort, or crop the center
    camera: str | tuple[str, ...] | None = None  # name, or several; none: the first, the overview camera
    layout: Layout = "side_by_side"  # of several cameras in one picture: stacked, wrists_below
    merge: Merge = "auto"  # action of a coarser transition: last command, sum of deltas, or per column

    def __post_init__(self) -> None:
        num_latent_frames(self.num_frames)
        if isinstance(self.camera, tuple):
            view_boxes(self.layout, len(self.camera), self.height, self.width)
        if self.stride < 1 or (self.step is not None and self.step < 1):
            raise ValueError(f"stride and step are at least 1, got stride={self.stride} step={self.step}")
        sizes = {"height": (1, 16384), "width": (1, 16384)}
        check_ranges(self, num_frames=(1, 100_001), stride=(1, 1_000_000), **sizes)
        check_range(self.fps or 1.0, 1e-3, 1e4, "fps")
        if self.fps is not None and (self.fps <= 0 or self.stride != 1):
            raise ValueError(
                f"fps is positive and replaces stride, got fps={self.fps} with stride={self.stride}"
            )


def frames_per_step(recorded_fps: float, config: ClipConfig) -> float:
    """Number of recorded frames between two clip frames."""
    if config.fps is None:
        return float(config.stride)
    ratio = recorded_fps / config.fps
    whole = round(ratio)
    if whole >= 1 and abs(ratio - whole) <= FPS_TOLERANCE * whole:
        return float(whole)
    if ratio < 1:
        raise ValueError(
            f"cannot resample {recorded_fps:g} frames per second up to {config.fps:g}: frames would repeat"
        )
    return ratio


def clip_offsets(recorded_fps: float, config: ClipConfig) -> Int[np.ndarray, " t"]:
    """Positions of the clip's frames in the recording, relative to its first frame."""
    return _positions(config.num_frames, frames_per_step(recorded_fps, config))


def clip_starts(num_recorded: int, recorded_fps: float, config: ClipConfig) -> range:
    """First frames of all clips of an episode of `num_recorded` frames; empty if it is too short."""
    span = int(clip_offsets(recorded_fps, config)[-1])
    return range(0, max(0, num_recorded - span), config.step or max(1, span))


def merge_actions(
    robot_actions: Float[np.ndarray, "n a"],
    positions: Int[np.ndarray, " t"],
    merge: Merge,
    is_delta: Bool[np.ndarray, " a"] | None = None,  # columns that "auto" sums; none: no column
) -> Float[np.ndarray, "t-1 a"]:
    """One action per transition between the given frames, as in the timeline above."""
    last = robot_actions[positions[1:] - 1]
    is_delta = np.zeros(robot_actions.shape[1], bool) if is_delta is None else is_delta
    if merge == "last" or (merge == "auto" and not is_delta.any()) or len(positions) < 2:
        return last
    total = np.add.reduceat(robot_actions[: positions[-1]], positions[:-1], axis=0)
    return total if merge == "sum" else np.where(is_delta, total, last)


def merged(episode: Episode, positions: Int[np.ndarray, " t"], merge: Merge) -> Float[np.ndarray, "t-1 a"]:
    """The merged actions of an episode between the given frames."""
    is_delta = np.isin(episode.action_names, episode.delta_actions or ())
    return merge_actions(episode.robot_actions, positions, merge, is_delta)


def merge_rule(merge: Merge, names: Sequence[str], deltas: Sequence[str]) -> Merge:
    """The rule that "auto" amounts to for these dimensions, if it is the same for all."""
    if merge != "auto" or (deltas and len(deltas) < len(names)):
        return merge
    return "sum" if deltas else "last"


def episode_actions(episode: Episode, config: ClipConfig) -> Float[np.ndarray, "n a"]:
    """All actions of an episode at the rate of the clips, for normalization statistics."""
    ratio = frames_per_step(episode.fps, config)
    positions = _positions(int((episode.num_frames - 1) / ratio) + 1, ratio)
    return merged(episode, positions[positions < episode.num_frames], config.merge)


def cut_clip(
    episode: Episode, start: int, config: ClipConfig
) -> tuple[UInt8[Tensor, "t 3 H W"], Float[np.ndarray, "t-1 a"]]:
    """Frames and raw (not normalized) robot actions of the clip that starts at this recorded frame."""
    positions = start + clip_offsets(episode.fps, config)
    if start < 0 or positions[-1] >= episode.num_frames:
        raise ValueError(
            f"{episode.source}: clip frames {start}..{positions[-1]} are not in 0..{episode.num_frames - 1}"
        )
    frames = clip_pictures(episode, positions.tolist(), config)
    robot_actions = merged(episode, positions, config.merge)
    return frames, robot_actions


def clip_pictures(episode: Episode, positions: Sequence[int], config: ClipConfig) -> UInt8[Tensor, "t 3 H W"]:
    """One camera at the size of the clip, or several, each at its size in the layout."""
    readers = find_views(episode, config.camera)
    size = config.height, config.width
    if len(readers) == 1:
        return resize_frames(readers[0].read(positions), *size, config.aspect)
    boxes = view_boxes(config.layout, len(readers), *size)
    views = [
        resize_frames(reader.read(positions), box.height, box.width, config.aspect)
        for reader, box in zip(readers, boxes, strict=True)
    ]
    return compose(views, boxes, *size)


def resize_frames(
    images: UInt8[np.ndarray, "t H0 W0 3"], height: int, width: int, aspect: Aspect = "stretch"
) -> UInt8[Tensor, "t 3 H W"]:
    """Antialiased bilinear resize to height x width; "crop" first crops the center to that aspect ratio."""
    # Torch accepts neither reversed nor read-only memory; "t H W 3" views of planar memory need no copy.
    is_usable = images.flags.writeable and min(images.strides) >= 0
    frames = torch.from_numpy(images if is_usable else images.copy()).permute(0, 3, 1, 2)
    if aspect == "crop":
        frames = _crop_to_aspect(frames, height / width)
    if frames.shape[-2:] != (height, width):
        frames = F.interpolate(frames, size=(height, width), mode="bilinear", antialias=True)
    return frames.contiguous()


def crop_box(height: int, width: int, ratio: float) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the largest part around the center whose height / width is `ratio`."""
    new_height, new_width = min(height, round(width * ratio)), min(width, round(height / ratio))
    return (height - new_height) // 2, (width - new_width) // 2, new_height, new_width


def _crop_to_aspect(frames: Tensor, ratio: float) -> Tensor:
    top, left, height, width = crop_box(frames.shape[-2], frames.shape[-1], ratio)
    return frames[..., top : top + height, left : left + width]


def _positions(count: int, ratio: float) -> np.ndarray:
    return np.floor(np.arange(count) * ratio + 0.5).astype(np.int64)
