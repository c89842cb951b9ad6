"""Types D, M and S of mechanistic independence, and the compositional contrast, from Jacobians.

J_i are the Jacobian columns of factor i and Omega_i the outputs that it affects. With a threshold tau, an
entry counts as zero up to tau times the largest entry of its Jacobian; results include a curve over tau,
since learned generators have no exact zeros.

    D  disjoint supports            Omega_i and Omega_j share no output
    M  mutual non-inclusion         no coordinate's support lies inside that of another factor's coordinate
    S  sparsity gap                 bases that mix factors are less sparse (`sparsity_gap.py`)
    H  higher order                 no mixed derivatives across factors (`higher_order.py`)

Axes: n points, m outputs, d latent coordinates, k blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.diagnostics.mechanisms.jacobians import (
    THRESHOLDS,
    Blocks,
    JacobianBlocks,
    Source,
    jacobian_blocks,
)
from worldmodel.diagnostics.mechanisms.sparsity_gap import SparsityGap, sparsity_gap
from worldmodel.report.intervals import Interval, mean_interval

THRESHOLD = 1e-3  # tau of single numbers
NORM_FLOOR = 1e-12  # keeps the gradient of a norm finite at 0


@dataclass(frozen=True)
class Criterion:
    """A criterion at sampled points: its score, where it holds, and both as a function of the threshold."""

    score: float  # mean over points at `threshold`
    interval: Interval  # 95 % of that mean
    holds: float  # share of the points where the criterion holds at `threshold`
    num_points: int
    threshold: float
    per_point: Float[np.ndarray, " n"]  # scores at `threshold`
    worst_point: int  # index of the point farthest from the criterion
    thresholds: tuple[float, ...]
    curve: Float[np.ndarray, " taus"]  # mean score at each of `thresholds`
    holds_curve: Float[np.ndarray, " taus"]  # share of points where it holds at each of them


@dataclass(frozen=True)
class CompositionalContrast:
    """Sum over outputs and pairs of factors of ||J_i[row]|| ||J_j[row]||; 0 only for disjoint supports."""

    raw: float  # mean over points; grows with the scale of the generator
    normalized: float  # divided by the sum over outputs of (sum of norms)^2; in [0, (k-1) / (2k)]
    interval: Interval  # 95 % of the normalized mean
    num_points: int
    per_point: Float[np.ndarray, " n"]  # normalized
    worst_point: int


def compositional_contrast(
    source: Source, z: Float[Tensor, "n d"] | None = None, blocks: Blocks | None = None
) -> CompositionalContrast:
    """Raw and normalized compositional contrast at the points z.

    `contrast = sum over outputs m and pairs i < j of ||J_i[m]|| ||J_j[m]||`

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import compositional_contrast
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def apart(z):  # coordinate 0 moves outputs 0 and 1, coordinate 1 moves output 2
        ...     return torch.stack([z[:, 0], z[:, 0].exp(), z[:, 1].exp()], dim=1)
        >>> compositional_contrast(apart, z).raw
        0.0

    References:
        "Provably Learning Object-Centric Representations", 2023.
    """
    norms = jacobian_blocks(source, z, blocks).row_norms
    raw = _pair_products(norms).sum(1)
    scale = norms.sum(2).square().sum(1).clamp(min=1e-300)
    per_point = (raw / scale).cpu().numpy()
    return CompositionalContrast(
        raw=raw.mean().item(),
        normalized=float(per_point.mean()),
        interval=mean_interval(per_point),
        num_points=len(per_point),
        per_point=per_point,
        worst_point=int(per_point.argmax()),
    )


def compositional_contrast_loss(
    jacobian: Float[Tensor, "*n m d"], blocks: Blocks, *, normalized: bool = False
) -> Float[Tensor, ""]:
    """The contrast as a training loss, mean over the points; gradients flow into the Jacobian.

    The raw form is the one in the literature. It can be lowered by shrinking the generator's Jacobian, which
    the reconstruction loss of an autoencoder does not prevent; the normalized form cannot.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import compositional_contrast_loss
        >>> jacobian = torch.tensor([[1.0, 0.0], [1.0, 2.0]], requires_grad=True)  # both move output 1
        >>> loss = compositional_contrast_loss(jacobian, blocks=[[0], [1]])
        >>> round(loss.item(), 3)
        2.0

    References:
        "Provably Learning Object-Centric Representations", 2023.
    """
    squares = torch.stack([jacobian[..., list(block)].square().sum(-1) for block in blocks], dim=-1)
    norms = (squares + NORM_FLOOR**2).sqrt()
    raw = _pair_products(norms).sum(-1)
    return (raw / norms.sum(-1).square().sum(-1) if normalized else raw).mean()


def type_d(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    blocks: Blocks | None = None,
    *,
    threshold: float = THRESHOLD,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Criterion:
    """Disjoint supports: the score is the share of moved outputs that several factors move (0 is best).

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import type_d
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def apart(z):  # coordinate 0 moves outputs 0 and 1, coordinate 1 moves output 2
        ...     return torch.stack([z[:, 0], z[:, 0].exp(), z[:, 1].exp()], dim=1)
        >>> type_d(apart, z).holds
        1.0

    References:
        "Mechanistic Independence: A Principle for Identifiable Disentangled Representations", 2025.
    """
    jacobians = jacobian_blocks(source, z, blocks)

    def overlap(tau: float) -> Float[np.ndarray, " n"]:
        factors = jacobians.block_support(tau).sum(2)
        return ((factors > 1).sum(1) / (factors > 0).sum(1).clamp(min=1)).double().cpu().numpy()

    return _criterion(overlap, lambda score: score == 0, threshold, thresholds, worst=np.argmax)


def type_m(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    blocks: Blocks | None = None,
    *,
    threshold: float = THRESHOLD,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Criterion:
    """Mutual non-inclusion of coordinates, in the given basis.

    The score is the smallest share of one coordinate's outputs that a coordinate of another factor does not
    affect: 1 for disjoint supports, 0 if one support lies inside the other.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import type_m
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def chain(z):  # the outputs overlap, but neither contains the other
        ...     return torch.stack([z[:, 0], z[:, 0] + z[:, 1], z[:, 1]], dim=1)
        >>> type_m(chain, z).score
        0.5

    References:
        "Mechanistic Independence: A Principle for Identifiable Disentangled Representations", 2025.
    """
    jacobians = jacobian_blocks(source, z, blocks)
    across = _across_blocks(jacobians)

    def margin(tau: float) -> Float[np.ndarray, " n"]:
        support = jacobians.support(tau).to(torch.float32)
        shared = support.transpose(1, 2) @ support
        size = shared.diagonal(dim1=1, dim2=2).unsqueeze(2)
        outside = torch.where(size > 0, (size - shared) / size.clamp(min=1), 0.0)
        return outside.where(across, torch.ones_like(outside)).amin((1, 2)).double().cpu().numpy()

    return _criterion(margin, lambda score: score > 0, threshold, thresholds, worst=np.argmin)


def type_s(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    blocks: Blocks | None = None,
    *,
    threshold: float = THRESHOLD,
    thresholds: Sequence[float] = THRESHOLDS,
    seed: int = 0,
) -> Criterion:
    """Sparsity gap: the score is (rho- - rho+) / rho+, positive where Type S holds.

    Exact for few latents and outputs; otherwise a surrogate whose rho- comes from the best mixing basis
    found, an upper bound. `sparsity_gap` explains both and reports which one was used. The curve is nan where
    the entries above a threshold do not have full rank.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import type_s
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def apart(z):  # coordinate 0 moves outputs 0 and 1, coordinate 1 moves output 2
        ...     return torch.stack([z[:, 0], z[:, 0].exp(), z[:, 1].exp()], dim=1)
        >>> type_s(apart, z).holds
        1.0

    References:
        "Mechanistic Independence: A Principle for Identifiable Disentangled Representations", 2025.
    """
    jacobians = jacobian_blocks(source, z, blocks)
    return gap_criterion(
        jacobians, sparsity_gap(jacobians, threshold=threshold, seed=seed), threshold, thresholds, seed=seed
    )


def gap_criterion(
    jacobians: JacobianBlocks,
    found: SparsityGap,
    threshold: float = THRESHOLD,
    thresholds: Sequence[float] = THRESHOLDS,
    *,
    num_steps: int = 200,
    seed: int = 0,
) -> Criterion:
    """Type S from the gap found at `threshold`; the gap is searched for again at the other thresholds."""

    def gap(tau: float) -> Float[np.ndarray, " n"]:
        if tau == threshold:
            return found.relative
        left = jacobians.jacobian * jacobians.support(tau)
        if int(torch.linalg.matrix_rank(left).min()) < jacobians.latent_dim:
            return np.full(jacobians.num_points, np.nan)
        is_exact = None if found.is_exact else False
        other = sparsity_gap(jacobians, threshold=tau, is_exact=is_exact, num_steps=num_steps, seed=seed)
        return other.relative

    return _criterion(gap, lambda score: score > 0, threshold, thresholds, worst=np.argmin)


def _criterion(
    score: Callable[[float], Float[np.ndarray, " n"]],
    is_met: Callable[[Float[np.ndarray, " n"]], np.ndarray],
    threshold: float,
    thresholds: Sequence[float],
    worst: Callable[[Float[np.ndarray, " n"]], np.intp],
) -> Criterion:
    if not thresholds or not all(0 <= tau < 1 for tau in (threshold, *thresholds)):
        raise ValueError(
            f"thresholds are shares of the largest entry in [0, 1), got {threshold}, {thresholds}"
        )
    scores = {tau: score(tau) for tau in dict.fromkeys((threshold, *thresholds))}
    main = scores[threshold]
    return Criterion(
        score=float(main.mean()),
        interval=mean_interval(main),
        holds=float(is_met(main).mean()),
        num_points=len(main),
        threshold=threshold,
        per_point=main,
        worst_point=int(worst(main)),
        thresholds=tuple(thresholds),
        curve=np.array([scores[tau].mean() for tau in thresholds]),
        holds_curve=np.array([is_met(scores[tau]).mean() for tau in thresholds]),
    )


def _pair_products(norms: Float[Tensor, "*n m k"]) -> Float[Tensor, "*n m"]:
    """Sum over i < j of norms_i norms_j; running sums, since differences of squares never reach 0."""
    before = torch.cat([torch.zeros_like(norms[..., :1]), norms.cumsum(-1)[..., :-1]], dim=-1)
    return (norms * before).sum(-1)


def _across_blocks(jacobians: JacobianBlocks) -> Tensor:
    """True for pairs of coordinates of different factors."""
    owner = torch.empty(jacobians.latent_dim, dtype=torch.long)
    for index, block in enumerate(jacobians.blocks):
        owner[list(block)] = index
    return owner.unsqueeze(0) != owner.unsqueeze(1)
