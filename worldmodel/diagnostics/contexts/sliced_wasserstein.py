"""Sliced Wasserstein distance between two samples, such as generated and real pictures."""

import torch
from jaxtyping import Float
from torch import Tensor


def sliced_wasserstein(
    first: Float[Tensor, "n ..."],
    second: Float[Tensor, "k ..."],
    *,
    num_projections: int = 50,
    generator: torch.Generator | None = None,
) -> float:
    """Root mean square of the 2-Wasserstein distances along random unit directions.

    A shift of everything by v in d dimensions gives about |v| / sqrt(d): for pictures, the root mean square
    of the shift of a pixel. Two samples of the same distribution are not at distance 0: compare with that.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import sliced_wasserstein
        >>> points = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> rng = torch.Generator().manual_seed(0)
        >>> round(sliced_wasserstein(points, points + 1, num_projections=2000, generator=rng), 1)
        1.0

    References:
        "Sliced and Radon Wasserstein Barycenters of Measures", 2015.
    """
    if first.shape != second.shape:
        raise ValueError(f"two samples of one size are needed, got {first.shape} and {second.shape}")
    if num_projections < 1 or len(first) < 1:
        raise ValueError(f"got {len(first)} samples and {num_projections} projections")
    rows = [part.flatten(1).double() for part in (first, second)]
    directions = torch.randn(rows[0].shape[1], num_projections, generator=generator, dtype=torch.float64)
    directions = (directions / directions.norm(dim=0)).to(rows[0].device)
    ordered = [(part @ directions).sort(0).values for part in rows]
    return float((ordered[0] - ordered[1]).square().mean().sqrt())
