"""The sparsity gap of Type S: how many more nonzeros a basis needs if it mixes factors.

For a basis A of the latent directions, ||J A||_0 counts nonzeros. rho+ is the smallest count over bases whose
vectors each stay within one factor, rho- the smallest over bases with at least one vector that mixes factors.
Type S holds where rho+ < rho-.

Exact: an elementary vector makes d - 1 independent rows of J vanish; optimal bases consist of them. Choosing
the sparsest basis is a matroid problem, so greedy choice is optimal, and the sparsest basis that contains a
given vector c differs from it by one exchange. Surrogate: minimize sum_a log ||J A_a||_1 - log |det A|, which
does not change if a column is scaled, from random starts, and count the nonzeros of the result. Axes: n
points, m outputs, d latent coordinates, e elementary vectors, r restarts.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from worldmodel.diagnostics.mechanisms.jacobians import Blocks, Source, jacobian_blocks
from worldmodel.report.intervals import Interval, mean_interval

ZERO = 1e-8  # relative size of J w below which a row counts as zero
MAX_SUBSETS = 40_000  # row subsets up to which the exact search is run
SURROGATE_ROWS = 512  # number of outputs used by the surrogate
SURROGATE_ZERO = 1e-2  # relative size that counts as zero after gradient descent


@dataclass(frozen=True)
class SparsityGap:
    """rho+ and rho- at each point; Type S holds where the gap is positive."""

    rho_plus: Float[np.ndarray, " n"]  # nonzeros of the sparsest basis inside the factors
    rho_minus: Float[np.ndarray, " n"]  # nonzeros of the sparsest mixing basis
    relative: Float[np.ndarray, " n"]  # (rho- - rho+) / rho+
    gap: float  # mean of rho- - rho+ over the points
    interval: Interval  # 95 % of that mean
    num_points: int
    is_exact: bool  # False: the surrogate was used and both counts are upper bounds
    num_outputs: int  # outputs that were counted; fewer than m when the surrogate sampled them


def sparsity_gap(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    blocks: Blocks | None = None,
    *,
    threshold: float = 1e-3,
    is_exact: bool | None = None,
    num_restarts: int = 4,
    num_steps: int = 200,
    seed: int = 0,
) -> SparsityGap:
    """The gap at every point.

    Args:
        source: generator with points z, or a Jacobian.
        z: points, for a generator.
        blocks: coordinates of each factor; every coordinate on its own if omitted.
        threshold: entries up to this share of the largest count as zero.
        is_exact: search exactly (cost: m choose d - 1); if omitted, wherever that is cheap.
        num_restarts: random starts of the surrogate.
        num_steps: gradient steps of the surrogate.
        seed: of the surrogate's starts and rows.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import sparsity_gap
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def apart(z):  # coordinate 0 moves outputs 0 and 1, coordinate 1 moves output 2
        ...     return torch.stack([z[:, 0], z[:, 0].exp(), z[:, 1].exp()], dim=1)
        >>> result = sparsity_gap(apart, z)
        >>> result.rho_plus[0], result.rho_minus[0], result.is_exact
        (np.float64(3.0), np.float64(4.0), True)

    References:
        "Mechanistic Independence: A Principle for Identifiable Disentangled Representations", 2025.
    """
    jacobians = jacobian_blocks(source, z, blocks)
    if len(jacobians.blocks) < 2:
        raise ValueError(f"a gap needs two factors or more, got the blocks {jacobians.blocks}")
    clean = jacobians.jacobian * jacobians.support(threshold)
    if is_exact is None:
        most = int(clean.ne(0).any(2).sum(1).max())
        is_exact = comb(most, jacobians.latent_dim - 1) <= MAX_SUBSETS
    if is_exact:
        found = [_exact(one.cpu().numpy().astype(np.float64), jacobians.blocks) for one in clean]
        num_outputs = clean.shape[1]
    else:
        rng = torch.Generator().manual_seed(seed)
        found = [_surrogate(one, jacobians.blocks, num_restarts, num_steps, rng) for one in clean]
        num_outputs = min(clean.shape[1], SURROGATE_ROWS)
    plus, minus = (np.array(values, dtype=np.float64) for values in zip(*found, strict=True))
    gap = minus - plus
    relative = gap / np.maximum(plus, 1)
    mean, interval = float(gap.mean()), mean_interval(gap)
    return SparsityGap(plus, minus, relative, mean, interval, len(gap), is_exact, num_outputs)


def _exact(jacobian: Float[np.ndarray, "m d"], blocks: tuple[tuple[int, ...], ...]) -> tuple[float, float]:
    rows = jacobian[np.abs(jacobian).max(1) > 0]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    if not len(rows) or np.linalg.matrix_rank(rows) < rows.shape[1]:
        raise ValueError("the Jacobian loses rank: bases of its image do not stand for bases of the latents")
    aligned = [_embedded(rows, block) for block in blocks]
    rho_plus = sum(_greedy(vectors, counts)[1] for vectors, counts in aligned)
    vectors, counts = _elementary(rows)
    basis, lightest = _greedy(vectors, counts)
    basis_counts = _counts(rows, basis)
    mixes = sum(np.abs(vectors[:, list(block)]).max(1) > ZERO for block in blocks) > 1
    candidates = [(vectors[mixes], counts[mixes]), *_sums(rows, aligned)]
    exchanged = [
        lightest + weight - basis_counts[np.abs(coefficients) > ZERO].max()
        for some, weights in candidates
        for coefficients, weight in zip(np.linalg.solve(basis.T, some.T).T, weights, strict=True)
    ]
    return float(rho_plus), float(min(exchanged))


def _elementary(rows: Float[np.ndarray, "m d"]) -> tuple[Float[np.ndarray, "e d"], Float[np.ndarray, " e"]]:
    """All w, up to scale, with d - 1 independent rows orthogonal to them, and their counts."""
    dim = rows.shape[1]
    if dim == 1:
        return np.ones((1, 1)), np.array([float(np.count_nonzero(rows))])
    subsets = np.array(list(combinations(range(len(rows)), dim - 1)))
    _, sizes, right = np.linalg.svd(rows[subsets], full_matrices=True)
    vectors = right[sizes[:, -1] > ZERO, -1]
    # Vectors with the same zero rows are the same: the support identifies them.
    supports = np.packbits(_moved(rows, vectors), axis=1)
    _, first = np.unique(supports, axis=0, return_index=True)
    return vectors[first], _counts(rows, vectors[first])


def _embedded(
    rows: Float[np.ndarray, "m d"], block: tuple[int, ...]
) -> tuple[Float[np.ndarray, "e d"], Float[np.ndarray, " e"]]:
    """Elementary vectors of one factor, as vectors of all coordinates."""
    part = rows[:, list(block)]
    active = part[np.abs(part).max(1) > 0]
    inner, counts = _elementary(active / np.linalg.norm(active, axis=1, keepdims=True))
    vectors = np.zeros((len(inner), rows.shape[1]))
    vectors[:, list(block)] = inner
    return vectors, counts


def _sums(
    rows: Float[np.ndarray, "m d"],
    aligned: list[tuple[np.ndarray, np.ndarray]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Generic sums of elementary vectors of two factors: nothing cancels, so supports are united."""
    moved = [_moved(rows, vectors) for vectors, _ in aligned]
    sums = []
    for i, j in combinations(range(len(aligned)), 2):
        united = (moved[i][:, None] | moved[j][None]).sum(2)
        # An irrational ratio: no row of small integers cancels.
        vectors = aligned[i][0][:, None] + np.sqrt(2.0) * aligned[j][0][None]
        sums.append((vectors.reshape(-1, rows.shape[1]), united.reshape(-1).astype(np.float64)))
    return sums


def _greedy(
    vectors: Float[np.ndarray, "e d"], counts: Float[np.ndarray, " e"]
) -> tuple[Float[np.ndarray, "rank d"], float]:
    """Independent vectors of least total count."""
    chosen: list[np.ndarray] = []
    total, rank = 0.0, int(np.linalg.matrix_rank(vectors, tol=ZERO))
    for index in np.argsort(counts, kind="stable"):
        if len(chosen) == rank:
            break
        grown = [*chosen, vectors[index]]
        if np.linalg.matrix_rank(np.array(grown), tol=ZERO) == len(grown):
            chosen, total = grown, total + counts[index]
    return np.array(chosen), total


def _moved(rows: Float[np.ndarray, "m d"], vectors: Float[np.ndarray, "e d"]) -> Bool[np.ndarray, "e m"]:
    return np.abs(vectors @ rows.T) > ZERO * np.linalg.norm(vectors, axis=1, keepdims=True)


def _counts(rows: Float[np.ndarray, "m d"], vectors: Float[np.ndarray, "e d"]) -> Float[np.ndarray, " e"]:
    return _moved(rows, vectors).sum(1).astype(np.float64)


def _surrogate(
    jacobian: Float[Tensor, "m d"],
    blocks: tuple[tuple[int, ...], ...],
    num_restarts: int,
    num_steps: int,
    rng: torch.Generator,
) -> tuple[float, float]:
    """(rho+, rho-) of the sparsest aligned and the sparsest mixing basis found by gradient descent."""
    active = jacobian[jacobian.ne(0).any(1)]
    if len(active) > SURROGATE_ROWS:
        active = active[torch.randperm(len(active), generator=rng)[:SURROGATE_ROWS].to(active.device)]
    dim = active.shape[1]
    inside = torch.zeros(dim, dim, dtype=torch.bool, device=active.device)
    for block in blocks:
        inside[np.ix_(block, block)] = True
    everywhere = torch.ones_like(inside)
    starts = torch.eye(dim) + torch.randn(num_restarts, dim, dim, generator=rng) / dim**0.5
    has_freedom = max(map(len, blocks)) > 1
    aligned = _descend(active, starts.to(active), inside, num_steps) if has_freedom else None
    own = torch.eye(dim).to(active).unsqueeze(0) if aligned is None else aligned
    counts = _nonzeros(active, own).sum(1)
    rho_plus = counts.min().item()
    found = _descend(active, starts.to(active), everywhere, num_steps)
    largest = torch.stack([found[:, list(block)].abs().amax(1) for block in blocks], 1)
    mixes = ((largest > SURROGATE_ZERO * largest.amax(1, keepdim=True)).sum(1) > 1).any(1)
    mixing = _nonzeros(active, found)[mixes].sum(1)
    summed = rho_plus + _cheapest_sum(active, own[counts.argmin()], blocks)
    return rho_plus, min([summed, *mixing.tolist()])


def _cheapest_sum(
    rows: Float[Tensor, "m d"], basis: Float[Tensor, "d d"], blocks: tuple[tuple[int, ...], ...]
) -> float:
    """Smallest increase of the count if a vector is replaced by a generic sum across two factors."""
    image = (rows @ basis).abs()
    moved = (image > SURROGATE_ZERO * image.amax(0)).double()
    sizes, shared = moved.sum(0), moved.T @ moved
    growth = torch.minimum(sizes.unsqueeze(0), sizes.unsqueeze(1)) - shared
    owner = {index: number for number, block in enumerate(blocks) for index in block}
    pairs = [(a, b) for a, b in combinations(range(len(sizes)), 2) if owner[a] != owner[b]]
    return min(growth[a, b].item() for a, b in pairs)


def _descend(
    rows: Float[Tensor, "m d"],
    starts: Float[Tensor, "r d d"],
    allowed: Bool[Tensor, "d d"],
    num_steps: int,
) -> Float[Tensor, "r d d"]:
    """Minimize sum_a log ||J A_a||_1 - log |det A| over the allowed entries."""
    scale = rows.norm(dim=0).clamp(min=1e-300)
    unit = (rows / scale).float()
    basis = (starts.float() * allowed).requires_grad_()
    slope, square = torch.zeros_like(basis), torch.zeros_like(basis)
    for step in range(num_steps):
        # The smoothed absolute value gets sharper as the descent proceeds.
        softness = 10 ** (-1 - 3 * step / num_steps) * unit.abs().mean()
        with torch.enable_grad():
            sizes = ((unit @ basis).square() + softness**2).sqrt().sum(1).log().sum(1)
            loss = (sizes - torch.linalg.slogdet(basis)[1]).sum()
            gradient = torch.autograd.grad(loss, basis)[0] * allowed
        # Adam in three lines: importing torch.optim for the first time needs seconds.
        slope = 0.9 * slope + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient.square()
        basis.data -= 0.1 * (1 - step / num_steps) * slope / (square.sqrt() + 1e-8)
    found = basis.detach().to(rows)
    return found / found.norm(dim=1, keepdim=True) / scale.unsqueeze(1)


def _nonzeros(rows: Float[Tensor, "m d"], bases: Float[Tensor, "r d d"]) -> Float[Tensor, "r d"]:
    images = (rows @ bases).abs()
    return (images > SURROGATE_ZERO * images.amax(1, keepdim=True)).sum(1).double()
