"""One generated clip against the true one, in three numbers, and rows of them compared by episode.

A pixel moves where the truth differs from the last given frame by more than MOVING_THRESHOLD in some channel.
The error of moving pixels is that of all frames of the clip together; clips with fewer than LEAST_MOVING such
pixels have none. Edges are the energy of the gray picture's Laplacian at moving pixels over the truth's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from worldmodel.evaluation.metrics.video import decibels, laplacian, moving_pixels

LEAST_MOVING = 50  # pixels of a clip


@dataclass(frozen=True)
class ClipScore:
    """Of the generated frames of a clip; None where too little moves."""

    whole: float  # PSNR of all pixels, dB
    moving: float | None  # PSNR of moving pixels, dB
    edges: float | None  # 1 is as sharp as the truth


@dataclass(frozen=True)
class Paired:
    """How far one row is ahead of another, in the same episodes."""

    mean: float
    standard_error: float
    ahead: int  # episodes in which the first is better
    episodes: int
    p: float  # one-sided, Student's t: how likely so large a lead is where there is none


def score_clip(
    made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"], last_given: Float[Tensor, "3 H W"]
) -> ClipScore:
    """Compare the generated frames with the true ones."""
    mask = moving_pixels(real, last_given)
    error = (made.double() - real.double()).square().mean(1)
    whole = decibels(error.mean()).item()
    if mask.sum() < LEAST_MOVING:
        return ClipScore(whole, None, None)
    energy = [laplacian(video.double().mean(1)).square()[mask].sum() for video in (made, real)]
    edges = (energy[0] / energy[1].clamp_min(1e-12)).item()
    return ClipScore(whole, decibels(error[mask].mean()).item(), edges)


def by_episode(uids: Sequence[str], values: Sequence[float | None]) -> Float[np.ndarray, " episodes"]:
    """Mean over the clips of each episode, in order of first appearance; nan where there is none."""
    found: dict[str, list[float]] = {uid: [] for uid in uids}
    for uid, value in zip(uids, values, strict=True):
        found[uid] += [] if value is None else [value]
    return np.array([np.mean(known) if known else np.nan for known in found.values()])


def paired(ours: Float[np.ndarray, " n"], theirs: Float[np.ndarray, " n"]) -> Paired:
    """The lead of one row, with its standard error over episodes."""
    lead = (ours - theirs)[~np.isnan(ours - theirs)]
    if len(lead) < 2:
        raise ValueError(f"a paired comparison needs 2 episodes or more that both rows have, got {len(lead)}")
    mean, error = float(lead.mean()), float(lead.std(ddof=1) / len(lead) ** 0.5)
    p = float(stats.t.sf(mean / max(error, 1e-12), len(lead) - 1))
    return Paired(mean, error, int((lead > 0).sum()), len(lead), p)


def holm(p: Mapping[str, float], level: float = 0.05) -> dict[str, bool]:
    """Which of several leads hold together (Holm's step-down)."""
    holds, is_open = {}, True
    for place, (name, value) in enumerate(sorted(p.items(), key=lambda pair: pair[1])):
        is_open = is_open and value <= level / (len(p) - place)
        holds[name] = is_open
    return holds
