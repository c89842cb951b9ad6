"""Correlation of true and estimated latents after the best one-to-one matching, for many models at once.

Axes: s models (any number of leading axes), n samples, d true and k estimated latents.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

Kind = Literal["pearson", "spearman"]


@dataclass(frozen=True)
class MatchedCorrelation:
    """|correlation| of each true latent with the estimated latent matched to it."""

    mean: Float[np.ndarray, "*s"]  # the mean correlation coefficient, MCC
    per_factor: Float[np.ndarray, "*s d"]  # 0 where a true latent has no partner (k < d)
    assignment: Int[np.ndarray, "*s d"]  # index of the partner; -1 without one
    num_samples: int  # samples that the correlations were computed on


def cross_correlation(
    true: Float[Tensor, "*s n d"], estimated: Float[Tensor, "*s n k"], kind: Kind = "pearson"
) -> Float[Tensor, "*s d k"]:
    """Correlation of every true with every estimated latent; 0 where one of them is constant."""
    first, second = (
        _unit_columns(_ranks(part) if kind == "spearman" else part) for part in (true, estimated)
    )
    return first.transpose(-1, -2) @ second


def matched_correlation(
    true: Float[Tensor, "*s n d"],
    estimated: Float[Tensor, "*s n k"],
    *,
    kind: Kind = "pearson",
    matching_share: float = 0.0,
) -> MatchedCorrelation:
    """Match by the largest total |correlation| and score the matched pairs.

    `matching_share` 0 matches and scores on all samples, as usual in the literature; otherwise the matching
    is found on that first share of the samples and scored on the rest, which avoids the upward bias.
    """
    if not 0 <= matching_share < 1:
        raise ValueError(f"matching_share must lie in [0, 1), got {matching_share}")
    cut = round(true.shape[-2] * matching_share)
    scored = cross_correlation(true[..., cut:, :], estimated[..., cut:, :], kind).abs()
    matched = cross_correlation(true[..., :cut, :], estimated[..., :cut, :], kind).abs() if cut else scored
    values = scored.cpu().numpy()
    matrices = matched.reshape(-1, *matched.shape[-2:]).cpu().numpy()
    assignment = np.stack([_assign(matrix) for matrix in matrices]).reshape(values.shape[:-1])
    partner = np.maximum(assignment, 0)[..., None]
    per_factor = np.where(assignment >= 0, np.take_along_axis(values, partner, axis=-1)[..., 0], 0.0)
    return MatchedCorrelation(np.asarray(per_factor.mean(-1)), per_factor, assignment, true.shape[-2] - cut)


def _assign(matrix: Float[np.ndarray, "d k"]) -> Int[np.ndarray, " d"]:
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    partner = np.full(matrix.shape[0], -1)
    partner[rows] = columns
    return partner


def _unit_columns(values: Tensor) -> Tensor:
    centered = values.double() - values.double().mean(-2, keepdim=True)
    norm = torch.linalg.vector_norm(centered, dim=-2, keepdim=True)
    # Centering leaves rounding errors in a constant column; they must not be scaled to unit length.
    size = values.double().abs().amax(-2, keepdim=True) * values.shape[-2] ** 0.5
    return torch.where(norm > 1e-12 * size, centered / norm, 0)


def _ranks(values: Tensor) -> Tensor:
    """Average ranks along the samples; ties share their mean rank."""
    columns = values.transpose(-1, -2).contiguous()
    ordered = columns.sort(dim=-1).values
    below = torch.searchsorted(ordered, columns)
    through = torch.searchsorted(ordered, columns, right=True)
    return ((below + through - 1).double() / 2).transpose(-1, -2)
