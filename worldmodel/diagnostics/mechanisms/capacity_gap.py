"""Proposition 1: a rank test for whether a GMD family contains laws outside an LRD family.

A chart maps parameters to finitely many numbers that describe the conditional laws, such as moments at some
conditions. If the Jacobian of the GMD chart has a higher rank than that of the LRD chart anywhere, almost no
GMD law belongs to the LRD family.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev

Chart = Callable[[Tensor], Tensor]  # parameters[p] -> description of the laws[q], in double precision


@dataclass(frozen=True)
class CapacityGap:
    """Highest ranks of d(laws)/d(parameters) in two families of generators, LRD and GMD (see the module)."""

    lrd_rank: int  # highest
    gmd_rank: int  # highest
    gmd_generic: float  # share of the GMD parameters with that rank

    @property
    def leaves(self) -> bool:
        """Whether the GMD family contains laws outside the LRD family."""
        return self.gmd_rank > self.lrd_rank

    def verdict(self) -> str:
        """One sentence for a report."""
        word = "leaves" if self.leaves else "is not shown to leave"
        return (
            f"the GMD family {word} the LRD family: rank {self.gmd_rank} at {self.gmd_generic:.0%} of its "
            f"parameters against at most {self.lrd_rank}"
        )


def capacity_gap(
    lrd: Chart,
    gmd: Chart,
    lrd_parameters: Float[Tensor, "n p"],
    gmd_parameters: Float[Tensor, "m r"],
    *,
    relative_tolerance: float = 1e-9,
) -> CapacityGap:
    """Compare the ranks of two charts at sampled parameters; both describe laws by the same numbers.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import capacity_gap
        >>> line = lambda p: torch.stack([p[0], 2 * p[0], p[0] ** 2])
        >>> plane = lambda p: torch.stack([p[0], p[1], p[0] * p[1]])
        >>> points = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
        >>> gap = capacity_gap(line, plane, points[:, :1], points)
        >>> gap.lrd_rank, gap.gmd_rank
        (1, 2)

    References:
        "Factored Generative Models through Mechanism Diversity", Proposition 1.
    """
    ranks = [
        torch.stack([_rank(chart, point, relative_tolerance) for point in parameters.double()])
        for chart, parameters in ((lrd, lrd_parameters), (gmd, gmd_parameters))
    ]
    highest = int(ranks[1].max())
    share = (ranks[1] == highest).double().mean().item()
    return CapacityGap(int(ranks[0].max()), highest, share)


def _rank(chart: Chart, parameters: Float[Tensor, " p"], tolerance: float) -> Tensor:
    singular = torch.linalg.svdvals(jacrev(chart)(parameters))
    return (singular > tolerance * singular.max().clamp(min=1e-300)).sum()
