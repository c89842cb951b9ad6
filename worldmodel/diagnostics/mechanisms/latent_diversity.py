"""Latent-distribution diversity (LRD), Assumption 1: does the condition change the prior in enough ways?

For log densities log p(z_i | u) of independent latents, the vector is

    w(z, u) = (d log p(z_i | u) / dz_i, d^2 log p(z_i | u) / dz_i^2)_{i = 1..d}

and Assumption 1 requires 2d + 1 conditions whose contrasts w(z, u_n) - w(z, u_0) are linearly independent.
Together with `mechanism_diversity` (Assumption 2) it shows which of the two a model relies on. Axes: n latent
points, k conditions, d latents, a size of a condition.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vmap

from worldmodel.diagnostics.mechanisms.mechanism_diversity import MechanismDiversity, contrast_rank

LogDensities = Callable[[Tensor, Tensor], Tensor]  # (z[d], u[a]) -> log p(z_i | u)[d], in double precision


def latent_diversity(
    log_densities: LogDensities,
    z: Float[Tensor, "n d"],
    conditions: Float[Tensor, "k a"],
    *,
    relative_tolerance: float = 1e-7,
) -> MechanismDiversity:
    """Rank and singular values of the contrasts of w at the points z.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import latent_diversity
        >>> def log_densities(z, u):  # Gaussians whose means and scales are the condition
        ...     return -((z - u[:1]) / u[1:].exp()) ** 2 / 2
        >>> rng = torch.Generator().manual_seed(0)
        >>> z, conditions = torch.randn(4, 1, generator=rng), torch.randn(3, 2, generator=rng)
        >>> latent_diversity(log_densities, z, conditions).rank.tolist()
        [2, 2, 2, 2]

    References:
        "Factored Generative Models through Mechanism Diversity", Assumption 1.
    """
    if len(conditions) < 2:
        raise ValueError(f"contrasts need at least 2 conditions, got {len(conditions)}")

    def slope(point: Tensor, condition: Tensor) -> Tensor:
        return grad(lambda x: log_densities(x, condition).sum())(point)

    def vector(point: Tensor, condition: Tensor) -> Tensor:
        # Each density depends on its own latent alone, so the row sums of the Hessian are its diagonal.
        curvature = grad(lambda x: slope(x, condition).sum())(point)
        return torch.cat([slope(point, condition), curvature])

    each = vmap(vmap(vector, in_dims=(None, 0)), in_dims=(0, None))
    vectors = each(z.double(), conditions.double()).detach()
    contrasts = vectors[:, 1:] - vectors[:, :1]
    rank, singular = contrast_rank(contrasts, relative_tolerance)
    return MechanismDiversity(
        z.shape[1], len(conditions), rank, singular, contrasts.abs().max().item(), (), "Assumption 1"
    )
