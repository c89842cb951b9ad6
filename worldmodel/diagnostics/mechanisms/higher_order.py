"""Type H of mechanistic independence: no mixed second derivatives across factors (additive decoders).

For independent standard normal u in factor i and v in factor j, E ||D^2 g(u, v)||^2 = ||D^2_ij g||_F^2, so
nested directional derivatives estimate the blocks of the Hessian without forming it.
Axes: n points, m outputs, d latent coordinates, k blocks.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vmap

from worldmodel.diagnostics.mechanisms.jacobians import (
    THRESHOLDS,
    Blocks,
    Generator,
    JacobianBlocks,
    Source,
    as_batched,
)
from worldmodel.diagnostics.mechanisms.mechanism_diversity import generator_shape
from worldmodel.report.intervals import Interval, mean_interval

MAX_PAIRWISE = 8  # blocks up to which every pair is probed; beyond, each block against all others
Energies = tuple[Tensor, Tensor, Tensor | None]  # within [n k], across [n k], pairs [n k k]
PROBES_AT_ONCE = 8  # pairs of directions in one call of the generator
HOLDS = 1e-6  # share of the Hessian across factors that counts as none


@dataclass(frozen=True)
class TypeH:
    """Share of the second derivative that mixes factors."""

    score: float  # mean over points of ||D^2 across factors|| / ||D^2||; nan where second derivatives vanish
    interval: Interval  # 95 % of that mean
    holds: float  # share of points with a score below 1e-6
    num_points: int
    num_probes: int
    per_point: Float[np.ndarray, " n"]
    shape: str  # "curved", "affine generator" or "piecewise linear generator"
    across: Float[np.ndarray, " k"]  # per block, root mean square of ||D^2_{i, others}||
    within: Float[np.ndarray, " k"]  # per block, root mean square of ||D^2_ii||; at 0, Type H is trivial
    pairs: Float[np.ndarray, "k k"] | None  # root mean square of ||D^2_ij|| when all pairs were probed
    thresholds: tuple[float, ...]  # tau: a block of the Hessian up to tau times the largest counts as zero
    curve: Float[np.ndarray, " taus"]  # mean score at each of `thresholds`
    holds_curve: Float[np.ndarray, " taus"]  # share of points where it holds at each of them


def type_h(
    source: Source,
    z: Float[Tensor, "n d"],
    blocks: Blocks | None = None,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    num_probes: int = 4,
    batched: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> TypeH:
    """Probe the Hessian of a smooth generator; warns if it vanishes because of the generator's form.

    A Jacobian does not determine second derivatives, so this measure needs the generator itself.

    `score = mean over z of ||D^2 g across factors|| / ||D^2 g||`

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import type_h
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def apart(z):  # coordinate 0 moves outputs 0 and 1, coordinate 1 moves output 2
        ...     return torch.stack([z[:, 0], z[:, 0].exp(), z[:, 1].exp()], dim=1)
        >>> type_h(apart, z).holds
        1.0
        >>> type_h(lambda z: z.prod(dim=1, keepdim=True).exp(), z).score > 0.5
        True

    References:
        "Mechanistic Independence: A Principle for Identifiable Disentangled Representations", 2025.
    """
    if isinstance(source, Tensor | np.ndarray | JacobianBlocks):
        raise ValueError("Type H needs second derivatives: pass the generator and points z, not a Jacobian")
    call, z = as_batched(source, batched, dtype), z.detach().to(dtype).contiguous()
    owned = _masks(blocks, z)
    shape = generator_shape(lambda inner, _: call(inner), _spread(z[:8]), z.new_zeros(1, 1))
    if shape != "curved":
        warnings.warn(
            f"{shape}: second derivatives vanish almost everywhere and Type H says nothing; use a smooth "
            f"activation (GELU, softplus, tanh)",
            stacklevel=2,
        )
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        probe = _pairs if len(owned) <= MAX_PAIRWISE else _against_others
        within, across, pairs = probe(call, z, owned, num_probes, rng)
    mixed = (
        across if pairs is None else pairs.flatten(1)[:, ~torch.eye(len(owned), dtype=torch.bool).flatten()]
    )
    shares = [_share(within, mixed, tau) for tau in (0.0, *thresholds)]
    per_point, *over = shares if shape == "curved" else [np.full_like(share, np.nan) for share in shares]
    return TypeH(
        score=float(per_point.mean()),
        interval=mean_interval(per_point),
        holds=float((per_point < HOLDS).mean()),
        num_points=len(z),
        num_probes=num_probes,
        per_point=per_point,
        shape=shape,
        across=across.mean(0).sqrt().cpu().numpy(),
        within=within.mean(0).sqrt().cpu().numpy(),
        pairs=None if pairs is None else pairs.mean(0).sqrt().cpu().numpy(),
        thresholds=tuple(thresholds),
        curve=np.array([share.mean() for share in over]),
        holds_curve=np.array([(share < HOLDS).mean() for share in over]),
    )


def _share(within: Float[Tensor, "n k"], mixed: Float[Tensor, "n p"], tau: float) -> Float[np.ndarray, " n"]:
    """Share of the second derivative in the blocks across factors that pass the threshold."""
    largest = torch.cat([within, mixed], 1).amax(1, keepdim=True)
    kept = mixed.where(mixed > tau**2 * largest, torch.zeros_like(mixed))
    total = within.sum(1) + mixed.sum(1)
    return (kept.sum(1) / total.clamp(min=1e-300)).sqrt().cpu().numpy()


def second_derivative(
    generator: Generator, z: Float[Tensor, "*n d"], u: Float[Tensor, "*n d"], v: Float[Tensor, "*n d"]
) -> Float[Tensor, "*n m"]:
    """D^2 g(z)(u, v), point by point; differentiable, so it also serves as a training loss."""

    def slope(point: Tensor) -> Tensor:
        return jvp(generator, (point,), (u,))[1]

    return jvp(slope, (z,), (v,))[1]


def _pairs(
    call: Generator,
    z: Float[Tensor, "n d"],
    owned: Float[Tensor, "k d"],
    num_probes: int,
    rng: torch.Generator,
) -> Energies:
    """Estimates of ||D^2_ij g||_F^2 for every pair of blocks."""
    rows, columns = torch.triu_indices(len(owned), len(owned))
    pairs = z.new_zeros(len(z), len(owned), len(owned))
    pairs[:, rows, columns] = _energies(call, z, owned[rows], owned[columns], num_probes, rng)
    pairs = pairs.triu() + pairs.triu(1).transpose(1, 2)
    within = pairs.diagonal(dim1=1, dim2=2)
    return within, pairs.sum(2) - within, pairs


def _against_others(
    call: Generator,
    z: Float[Tensor, "n d"],
    owned: Float[Tensor, "k d"],
    num_probes: int,
    rng: torch.Generator,
) -> Energies:
    """Estimates for each block with itself and with all others together: 2 k probes instead of k^2 / 2."""
    partners = torch.cat([owned, 1 - owned])
    within, across = _energies(call, z, owned.repeat(2, 1), partners, num_probes, rng).chunk(2, dim=1)
    return within, across, None


def _energies(
    call: Generator,
    z: Float[Tensor, "n d"],
    first: Float[Tensor, "p d"],
    second: Float[Tensor, "p d"],
    num_probes: int,
    rng: torch.Generator,
) -> Float[Tensor, "n p"]:
    """Mean over probes of ||D^2 g(u, v)||^2 for u, v masked by each pair."""

    def single(point: Tensor) -> Tensor:
        return call(point.unsqueeze(0)).squeeze(0)

    def squared(point: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return second_derivative(single, point, u, v).square().sum()

    # All pairs share one point: its activations and their slopes are computed once per chunk.
    probe = vmap(squared, in_dims=(None, 0, 0), chunk_size=PROBES_AT_ONCE)
    energy = z.new_zeros(len(z), len(first))
    for _ in range(num_probes):
        u, v = (torch.randn(z.shape, generator=rng, dtype=torch.float64).to(z) for _ in range(2))
        for index, point in enumerate(z):
            energy[index] += probe(point, u[index] * first, v[index] * second) / num_probes
    return energy


def _masks(blocks: Blocks | None, z: Float[Tensor, "n d"]) -> Float[Tensor, "k d"]:
    chosen = [(i,) for i in range(z.shape[1])] if blocks is None else [tuple(block) for block in blocks]
    if sorted(i for block in chosen for i in block) != list(range(z.shape[1])):
        raise ValueError(f"blocks must hold each of the {z.shape[1]} latent coordinates once, got {chosen}")
    owned = z.new_zeros(len(chosen), z.shape[1])
    for index, block in enumerate(chosen):
        owned[index, list(block)] = 1
    return owned


def _spread(z: Float[Tensor, "n d"]) -> Float[Tensor, "n2 d"]:
    """At least two different points, needed to detect kinks between points."""
    return z if len(z) > 1 and not z.eq(z[:1]).all() else torch.cat([z, z + 1])
