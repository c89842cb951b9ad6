"""Resamples episodes with irregular timestamps to a fixed rate: each time gets the latest frame before it.

recorded times 0.00 0.08 0.29 0.40 10 frames per second even times 0.00 0.10 0.20 0.30 0.40 recorded frame 0 1
1 2 3 action a0 hold a1 a2 a repeated frame: no change, the last command is held
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int, UInt8

from worldmodel.data.decode_cache import Checkable
from worldmodel.types import Episode, FrameReader

MAX_GROWTH = 10  # largest number of resampled frames per recorded one; more means broken timestamps


@dataclass(frozen=True)
class ChosenFrames:
    """Frames of another reader in a new order."""

    inner: FrameReader
    positions: tuple[int, ...]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.inner.size

    @property
    def path(self) -> str:
        """The file, if the frames have one."""
        return getattr(self.inner, "path", "")

    def check(self, *, again: bool = False) -> None:
        """Check the underlying frames, if their reader supports it."""
        if isinstance(self.inner, Checkable):
            self.inner.check(again=again)

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at these positions, in this order; repeats are allowed."""
        if any(not 0 <= index < len(self.positions) for index in indices):
            raise ValueError(f"frame {list(indices)} asked for, there are 0..{len(self.positions) - 1}")
        return self.inner.read([self.positions[index] for index in indices])


def resampled(episode: Episode, times: Float[np.ndarray, " t"]) -> Episode:
    """The episode resampled from its recorded times to its declared rate."""
    steps = np.diff(times)
    count = int((times[-1] - times[0]) * episode.fps + 1.5)
    if steps.min() <= 0 or not 2 <= count <= MAX_GROWTH * len(times):
        raise ValueError(
            f"{episode.source}: timestamps from {times[0]:.6g} to {times[-1]:.6g} s in steps of "
            f"{steps.min():.3g} s and more cannot be resampled to {episode.fps:.4g} frames per second; set "
            "timestamps: keep in the mapping"
        )
    even = times[0] + np.arange(count) / episode.fps
    positions = np.searchsorted(times, even + 0.25 / episode.fps, side="right") - 1
    note = (
        f"resampled by timestamps from {len(times)} frames to {count} at {episode.fps:.4g} frames per second"
    )
    states = episode.robot_states
    return replace(
        episode,
        frames={
            name: ChosenFrames(reader, tuple(positions.tolist())) for name, reader in episode.frames.items()
        },
        robot_actions=_actions(episode, positions),
        robot_states=None if states is None else states[positions],
        notes=(*episode.notes, note),
        frame_times=None,
    )


def _actions(episode: Episode, positions: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n-1 a"]:
    """Between two frames the sum of deltas and the last of absolute values.

    Repeated frames have zero deltas.
    """
    actions = episode.robot_actions
    sums = np.concatenate([np.zeros_like(actions[:1]), np.cumsum(actions, axis=0, dtype=np.float64)])
    total = sums[positions[1:]] - sums[positions[:-1]]
    last = actions[np.maximum(positions[1:] - 1, 0)]
    is_delta = np.isin(episode.action_names, episode.delta_actions or ())
    return np.where(is_delta, total, last).astype(actions.dtype)
