"""Sparse volume: a differentiable surrogate of Type S, for factors whose supports overlap.

For Jacobian blocks J_i with orthonormal bases Q_i of their column spaces,

    L = sum_i d_i log sum_rows ||Q_i[row]||  +  1/2 (sum_i log det J_i^T J_i - log det J^T J)

The first term is the l1 norm of each factor's outputs at unit l2 norm: it decreases as the factor's effect
concentrates on few outputs, and unlike the compositional contrast it does not penalize overlap itself. The
second is zero for orthogonal factors and infinite for dependent ones: it keeps factors from concentrating on
the same outputs. L does not change if coordinates are scaled or mixed within a factor. Axes: n points, m
outputs, d latent coordinates.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.diagnostics.mechanisms.jacobians import Blocks

NORM_FLOOR = 1e-6  # of ||Q_i[row]||, so that the gradient stays finite at 0; norms are about 1 / sqrt(m)
JITTER = 1e-6  # on Gram matrices of unit columns
TINY = 1e-30  # squared length of a column without effect


def sparse_volume_loss(
    jacobian: Float[Tensor, "*n m d"], blocks: Blocks, *, volume_weight: float = 1.0
) -> Float[Tensor, ""]:
    """L of the module's docstring, mean over the points; gradients flow into the Jacobian.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import sparse_volume_loss
        >>> sparse, mixed = torch.eye(2), torch.tensor([[0.8, -0.6], [0.6, 0.8]])  # equal volume
        >>> blocks = [[0], [1]]
        >>> bool(sparse_volume_loss(sparse, blocks) < sparse_volume_loss(mixed, blocks))
        True
    """
    # L does not depend on the scale of coordinates; unit columns make the Gram matrices better conditioned.
    unit = jacobian / (jacobian.square().sum(-2, keepdim=True) + TINY).sqrt()
    gram = unit.transpose(-1, -2) @ unit
    sparsity, volume = unit.new_zeros(()), -_log_det(_factor(gram))
    for block in blocks:
        chosen = list(block)
        rows = unit[..., chosen]
        if len(chosen) > 1:
            factor = _factor(gram[..., chosen, :][..., chosen])
            # Rows of Q_i: J_i times the inverse of the Cholesky factor, transposed.
            rows = torch.linalg.solve_triangular(factor, rows.transpose(-1, -2), upper=False).transpose(
                -1, -2
            )
            volume = volume + _log_det(factor)
        norms = (rows.square().sum(-1) + NORM_FLOOR**2).sqrt()
        sparsity = sparsity + len(chosen) * norms.sum(-1).log()
    return (sparsity + 0.5 * volume_weight * volume).mean()


def _factor(gram: Float[Tensor, "*n d d"]) -> Float[Tensor, "*n d d"]:
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.cholesky(gram + JITTER * eye)


def _log_det(factor: Float[Tensor, "*n d d"]) -> Float[Tensor, "*n"]:
    """Of the matrix with this Cholesky factor."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
