"""How far a decoder is from an isometry: the constant in every near-identifiability bound."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.diagnostics.mechanisms.jacobians import Source, jacobian_blocks
from worldmodel.report.intervals import Interval, median_interval


@dataclass(frozen=True)
class BiLipschitz:
    """Singular values of the Jacobian over the sampled points.

    A decoder rescaled by a common factor is L-bi-Lipschitz with L^2 = upper / lower; two such decoders of the
    same data differ by an L^2-bi-Lipschitz change of latents.
    """

    lower: float  # smallest singular value anywhere
    upper: float  # largest singular value anywhere
    ratio_median: float  # largest over smallest at one point, over the points
    ratio_95: float  # 95 % of the points lie below
    interval: Interval  # 95 % interval of the median, from order statistics
    num_samples: int


def bi_lipschitz(
    source: Source, z: Float[Tensor, "n d"] | None = None, *, chunk_size: int | None = None
) -> BiLipschitz:
    """Local estimate from Jacobians of a generator at points z, or from Jacobians themselves.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import bi_lipschitz
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> result = bi_lipschitz(lambda z: z * torch.tensor([1.0, 3.0], dtype=z.dtype), z)
        >>> round(result.lower, 3), round(result.upper, 3)
        (1.0, 3.0)

    References:
        "Statistical and structural identifiability in representation learning", 2026.
    """
    values = jacobian_blocks(source, z, chunk_size=chunk_size).singular_values
    largest, smallest = values[:, 0], values[:, -1]
    ratio = torch.where(smallest > 0, largest / smallest, torch.inf).cpu().numpy()
    median, most = np.quantile(ratio, (0.5, 0.95), method="nearest")
    return BiLipschitz(
        float(smallest.min()),
        float(largest.max()),
        float(median),
        float(most),
        median_interval(ratio),
        len(ratio),
    )
