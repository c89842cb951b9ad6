"""Measures how long after a command the picture moves, from the motion of both.

A command of lag k is the one given k frames before a frame. Lag 1 is the command that a model conditions a
frame on: it leads from the frame before. A robot that is slow to answer moves by older commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from worldmodel.data.clips import resize_frames
from worldmodel.types import Episode, FrameReader

LONGEST = 1.0  # seconds
CLEAR = 0.15  # least correlation
SIDE = 16  # pixels per side of the pictures that are compared: less noise than in whole ones
SPAN = 4  # frames that a motion is measured over: some cameras show every frame twice

Pictures = Float[np.ndarray, "t p"]  # small gray ones
Motion = Float[np.ndarray, " n"]  # from a frame to the one SPAN frames later


@dataclass(frozen=True)
class PictureLag:
    """The lag at which the motion of pictures and of commands agree best."""

    frames: int
    seconds: float
    correlation: float
    num_episodes: int

    def __str__(self) -> str:
        found = f"correlation {self.correlation:.2f}, {self.num_episodes} episode(s)"
        if self.correlation < CLEAR:
            return f"not clear, the picture moves with other things than the commands: {found}"
        late = f"{self.frames} recorded frame(s), {self.seconds:.2f} s"
        return f"the picture follows the command by {late}: {found}"


def measure_picture_lag(episodes: Sequence[Episode], pictures: Sequence[Pictures]) -> PictureLag | None:
    """The lag over all these episodes, given their `small_pictures`; None if nothing moves."""
    known = [
        (np.abs(shown[SPAN:] - shown[:-SPAN]).mean(1), command_motion(episode))
        for shown, episode in zip(pictures, episodes, strict=True)
        if len(shown) > 2 * SPAN + 2
    ]
    longest = min([round(LONGEST * episodes[0].fps), *(len(motion) // 2 for motion, _ in known)])
    # Both start at the first of their frames: a motion of the picture follows the commands of `lag` before.
    found = [
        float(np.mean([_agreement(motion[lag:], given[: len(motion) - lag]) for motion, given in known]))
        for lag in range(1, longest + 1 if known else 1)
    ]
    if not np.isfinite(found).any():
        return None
    best = int(np.nanargmax(found)) + 1
    return PictureLag(best, best / episodes[0].fps, found[best - 1], len(known))


def small_pictures(reader: FrameReader) -> Pictures:
    """Every frame, read once."""
    parts = [
        resize_frames(reader.read(range(start, min(start + 64, len(reader)))), SIDE, SIDE)
        for start in range(0, len(reader), 64)
    ]
    gray: Pictures = torch.cat(parts).float().mean(1).flatten(1).numpy()
    return gray


def command_motion(episode: Episode) -> Motion:
    """How far the commands move, every dimension in units of its own steps."""
    actions = episode.robot_actions.astype(np.float64)
    is_delta = np.isin(episode.action_names, episode.delta_actions or ())
    places = np.where(is_delta, np.cumsum(actions, 0), actions)
    steps = np.diff(places, axis=0).std(0)
    moved = np.abs(places[SPAN:] - places[:-SPAN]) / np.where(steps > 0, steps, np.inf)
    total: Motion = moved.sum(1)
    return total


def _agreement(one: Motion, other: Motion) -> float:
    if not (one.std() > 0 and other.std() > 0):
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])
