"""A graph of latent coordinates that share outputs, and the finest split of the tangent space.

The support graph joins coordinates whose outputs overlap: independent irreducible factors are its connected
components, and a basis that mixes factors can only have fewer of them. `irreducible_components` needs no
basis: the rows of J form a matroid, whose connected components split the latent directions as finely as any
basis can.

    choose d independent rows B; C = J J_B^-1; join row r and basis row k where C[r, k] != 0
    directions of component k: the columns of J_B^-1 that belong to it

Axes: n points, m outputs, d latent coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from worldmodel.diagnostics.mechanisms.jacobians import THRESHOLDS, Blocks, Source, jacobian_blocks
from worldmodel.report.intervals import Interval, mean_interval

ZERO_ROW = 1e-9  # norm, relative to the largest, below which a row moves with nothing


@dataclass(frozen=True)
class SupportGraph:
    """Coordinates joined where their outputs overlap, with components at one threshold and at all of them."""

    components: tuple[tuple[int, ...], ...]  # connected coordinates, at `threshold`
    threshold: float  # share of the largest entry up to which an entry counts as zero
    num_points: int
    per_point: Int[np.ndarray, " n"]  # components of each point's own graph at `threshold`
    interval: Interval  # 95 % of the mean of `per_point`
    thresholds: tuple[float, ...]
    curve: Int[np.ndarray, " taus"]  # components at each of `thresholds`, for edges united by `agreement`
    weights: Float[np.ndarray, "d d"]  # mean over points of sum |J_a J_b| / (||J_a|| ||J_b||), in [0, 1]
    merges: Float[np.ndarray, " d-1"]  # weights at which components join, largest first

    @property
    def num_components(self) -> int:
        """Number of components at the chosen threshold."""
        return len(self.components)

    def components_above(self, weight: float) -> int:
        """Components when only edges heavier than `weight` count: the 0-dimensional persistence curve."""
        return len(self.weights) - int((self.merges > weight).sum())

    @property
    def most_persistent(self) -> tuple[int, float]:
        """The number of components that persists over the widest range of weights, and that range."""
        levels = np.concatenate([[1.0], self.merges, [0.0]])
        lengths = levels[:-1] - levels[1:]
        best = int(lengths.argmax())
        return len(self.weights) - best, float(lengths[best])


@dataclass(frozen=True)
class IrreducibleComponents:
    """Finest split into factors with disjoint supports over all bases, at every point."""

    num_components: int  # the smallest count over the points: what all points allow
    num_points: int
    per_point: Int[np.ndarray, " n"]
    interval: Interval  # 95 % of the mean of `per_point`
    tolerances: tuple[float, ...]
    curve: Float[np.ndarray, " tols"]  # mean count at each of `tolerances`
    subspaces: tuple[Float[np.ndarray, "d d_k"], ...]  # directions of each component at the first point
    misalignment: float  # largest sine between subspaces of different points; 0: one basis fits all; or nan
    block_components: tuple[int, ...]  # largest count inside each given block; 1: irreducible


def support_graph(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    *,
    threshold: float = 1e-3,
    thresholds: Sequence[float] = THRESHOLDS,
    agreement: float = 0.0,
) -> SupportGraph:
    """The graph over latent coordinates; an edge counts if more than `agreement` of the points have it.

    0 unites the edges of all points, 0.5 requires a majority.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import support_graph
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def apart(z):  # coordinate 0 moves outputs 0 and 1, coordinate 1 moves output 2
        ...     return torch.stack([z[:, 0], z[:, 0].exp(), z[:, 1].exp()], dim=1)
        >>> support_graph(apart, z).components
        ((0,), (1,))

    References:
        "Mechanistic Independence: A Principle for Identifiable Disentangled Representations", 2025.
    """
    if not 0 <= agreement < 1:
        raise ValueError(f"agreement is a share of the points in [0, 1), got {agreement}")
    jacobians = jacobian_blocks(source, z)

    def edges(tau: float) -> Bool[np.ndarray, "n d d"]:
        support = jacobians.support(tau).float()
        return (support.transpose(1, 2) @ support > 0).cpu().numpy()

    by_threshold = {tau: edges(tau) for tau in dict.fromkeys((threshold, *thresholds))}
    united = {tau: found.mean(0) > agreement for tau, found in by_threshold.items()}
    own = np.array([_components(graph)[0] for graph in by_threshold[threshold]])
    count, labels = _components(united[threshold])
    size = jacobians.jacobian.abs()
    unit = size / size.norm(dim=1, keepdim=True).clamp(min=1e-300)
    weights = (unit.transpose(1, 2) @ unit).mean(0).clamp(max=1).cpu().numpy()
    return SupportGraph(
        components=tuple(tuple(np.flatnonzero(labels == label).tolist()) for label in range(count)),
        threshold=threshold,
        num_points=jacobians.num_points,
        per_point=own,
        interval=mean_interval(own.astype(np.float64)),
        thresholds=tuple(thresholds),
        curve=np.array([_components(united[tau])[0] for tau in thresholds]),
        weights=weights,
        merges=_merge_weights(weights),
    )


def irreducible_components(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    blocks: Blocks | None = None,
    *,
    tolerance: float = 1e-6,
    tolerances: Sequence[float] = (1e-8, 1e-6, 1e-4, 1e-2, 1e-1),
) -> IrreducibleComponents:
    """Components of the row matroid at every point, exact up to `tolerance` on C with rows of unit length.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import irreducible_components
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def rotated(z):  # two separate outputs, in a basis that mixes them
        ...     return torch.stack([(z[:, 0] + z[:, 1]).exp(), (z[:, 0] - z[:, 1]).exp()], dim=1)
        >>> irreducible_components(rotated, z).num_components
        2

    References:
        "Mechanistic Independence: A Principle for Identifiable Disentangled Representations", 2025.
    """
    jacobians = jacobian_blocks(source, z, blocks)
    arrays = jacobians.jacobian.cpu().numpy().astype(np.float64)
    coordinates = [RowMatroid.of(array) for array in arrays]
    splits = [matroid.split(tolerance) for matroid in coordinates]
    counts = np.array([len(split) for split in splits])
    inside = [_most_inside(arrays, block, tolerance) for block in jacobians.blocks]
    return IrreducibleComponents(
        num_components=int(counts.min()),
        num_points=len(counts),
        per_point=counts,
        interval=mean_interval(counts.astype(np.float64)),
        tolerances=tuple(tolerances),
        curve=np.array([np.mean([len(m.split(tol)) for m in coordinates]) for tol in tolerances]),
        subspaces=splits[0],
        misalignment=max((_misalignment(splits[0], split) for split in splits[1:]), default=0.0),
        block_components=tuple(inside),
    )


def _most_inside(arrays: Float[np.ndarray, "n m d"], block: tuple[int, ...], tolerance: float) -> int:
    """Components inside one factor, at the point where it splits into most."""
    if len(block) == 1:
        return 1
    return max(len(RowMatroid.of(array[:, list(block)]).split(tolerance)) for array in arrays)


@dataclass(frozen=True)
class RowMatroid:
    """Rows of a Jacobian in coordinates of d independent ones among them."""

    coordinates: Float[np.ndarray, "rows d"]  # C: each row as a combination of the basis rows
    directions: Float[np.ndarray, "d d"]  # J_B^-1: column k moves basis row k and no other

    @classmethod
    def of(cls, jacobian: Float[np.ndarray, "m d"]) -> "RowMatroid":
        """Choose the basis rows by pivoted QR; scaling rows does not change the matroid."""
        norms = np.linalg.norm(jacobian, axis=1)
        rows = jacobian[norms > ZERO_ROW * norms.max()]
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        dim = rows.shape[1]
        triangle, pivots = scipy.linalg.qr(rows.T, mode="r", pivoting=True)
        sizes = np.abs(np.diagonal(triangle))
        if len(sizes) < dim or sizes[-1] < 1e-9 * sizes[0]:
            raise ValueError("the Jacobian loses rank: directions without effect cannot be split")
        inverse = np.linalg.inv(rows[pivots[:dim]])
        return cls(rows @ inverse, inverse)

    def split(self, tolerance: float) -> tuple[Float[np.ndarray, "d d_k"], ...]:
        """The directions of each connected component."""
        uses = (np.abs(self.coordinates) > tolerance).astype(np.float32)
        # Basis rows are connected if some row uses both.
        labels = _components(uses.T @ uses > 0)[1]
        return tuple(self.directions[:, labels == label] for label in np.unique(labels))


def _components(graph: Bool[np.ndarray, "d d"]) -> tuple[int, Int[np.ndarray, " d"]]:
    count, labels = connected_components(csr_matrix(graph), directed=False)
    return int(count), labels


def _merge_weights(weights: Float[np.ndarray, "d d"]) -> Float[np.ndarray, " d-1"]:
    """Edges of the heaviest spanning tree, heaviest first (Prim; zeros are edges too, so it always spans)."""
    best = weights[0].copy()
    reached = np.zeros(len(weights), dtype=bool)
    reached[0] = True
    found = []
    for _ in range(len(weights) - 1):
        nearest = int(np.where(reached, -1.0, best).argmax())
        found.append(best[nearest])
        reached[nearest] = True
        best = np.maximum(best, weights[nearest])
    return np.sort(np.array(found, dtype=np.float64))[::-1]


def _misalignment(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """Largest sine of an angle between each subspace and its partner; nan when the splits differ in kind."""
    if sorted(part.shape[1] for part in first) != sorted(part.shape[1] for part in second):
        return float("nan")
    angles = []
    for part in first:
        same = [other for other in second if other.shape[1] == part.shape[1]]
        angles.append(min(scipy.linalg.subspace_angles(part, other).max() for other in same))
    return float(np.sin(max(angles)))
