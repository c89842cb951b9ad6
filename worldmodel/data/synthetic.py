"""Synthetic episodes whose pictures are a simple function of the actions, for tests and examples.

Action dimensions 0, 1 command the (x, y) of a disc and 2, 3 that of a square: -1 .. 1 spans the inner 70 % of
the picture, and a command is reached exactly at the next frame. Further dimensions move smoothly and are not
visible; from five dimensions on, the last one is constant, like an idle gripper.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from worldmodel.types import Episode, EpisodeSource


@dataclass(frozen=True)
class SyntheticFrames:
    """Renders the frames of an episode on demand."""

    states: Float[np.ndarray, "t state"]
    size: tuple[int, int]
    colors: Float[np.ndarray, "3 3"]  # background, disc, square; RGB in [0, 255]

    def __len__(self) -> int:
        return len(self.states)

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The frames at these positions."""
        height, width = self.size
        y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
        centers = self.states[list(indices), None, None, :]
        radius, soft = 0.3, 2.0 / min(height, width)  # edges blend over about one pixel
        disc = np.hypot(x - 0.7 * centers[..., 0], y - 0.7 * centers[..., 1])
        images = np.broadcast_to(self.colors[0], (*disc.shape, 3))
        images = _paint(images, disc, radius, soft, self.colors[1])
        if self.states.shape[1] >= 4:
            square = np.maximum(abs(x - 0.7 * centers[..., 2]), abs(y - 0.7 * centers[..., 3]))
            images = _paint(images, square, radius * 0.8, soft, self.colors[2])
        return np.round(images).astype(np.uint8)


@dataclass(frozen=True)
class SyntheticSource:
    """`num_episodes` episodes; episode i depends on (seed, i) only."""

    num_episodes: int
    num_frames: int
    size: tuple[int, int]
    action_dim: int
    embodiments: tuple[str, ...]
    fps: float
    seed: int
    name: str

    def __len__(self) -> int:
        return self.num_episodes

    def __getitem__(self, index: int) -> Episode:
        if not 0 <= index < self.num_episodes:
            raise IndexError(index)
        embodiment = self.embodiments[index % len(self.embodiments)]
        states = _smooth_motion(np.random.default_rng([self.seed, index]), self.num_frames, self.action_dim)
        names = tuple(f"joint{i}" for i in range(self.action_dim))
        return Episode(
            uid=f"episode{index}",
            source=f"{self.name}/episode{index}",
            frames={"head": SyntheticFrames(states, self.size, _colors(embodiment))},
            robot_actions=states[1:],
            action_names=names,
            fps=self.fps,
            embodiment=embodiment,
            task="synthetic",
            robot_states=states,
            state_names=names,
            delta_actions=(),
        )


def synthetic_source(
    num_episodes: int = 2,
    num_frames: int = 33,
    size: tuple[int, int] = (64, 64),
    action_dim: int = 14,
    embodiments: tuple[str, ...] = ("a",),
    fps: float = 50 / 3,
    seed: int = 0,
    name: str = "synthetic",
) -> EpisodeSource:
    """Episodes of two shapes that follow the actions; embodiments alternate, each in its own colors."""
    if action_dim < 2:
        raise ValueError(f"a disc needs at least 2 action dimensions, got {action_dim}")
    return SyntheticSource(num_episodes, num_frames, size, action_dim, embodiments, fps, seed, name)


def _smooth_motion(rng: np.random.Generator, num_frames: int, dim: int) -> Float[np.ndarray, "t state"]:
    time = np.arange(num_frames)[:, None, None]
    frequency = rng.uniform(0.05, 0.35, (1, dim, 3))  # radians per frame
    phase = rng.uniform(0, 2 * np.pi, (1, dim, 3))
    states = np.sin(frequency * time + phase).mean(-1) * 1.2
    if dim >= 5:
        states[:, -1] = 1.0
    return np.clip(states, -1, 1)


def _colors(embodiment: str) -> Float[np.ndarray, "3 3"]:
    rng = np.random.default_rng(zlib.crc32(embodiment.encode()))
    background = rng.uniform(150, 230, 3)
    hue = rng.permutation(3)
    shapes = np.eye(3)[hue[:2]] * 200 + rng.uniform(0, 50, (2, 3))
    return np.vstack([background, shapes])


def _paint(
    images: np.ndarray, distance: np.ndarray, radius: float, soft: float, color: np.ndarray
) -> np.ndarray:
    cover = np.clip((radius - distance) / soft + 0.5, 0, 1)[..., None]
    return images * (1 - cover) + color * cover
