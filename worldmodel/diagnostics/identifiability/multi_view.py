"""Proposition 3 on finite spaces: three views of a hidden state identify it, two do not.

A view is p(x | z, u_n): a matrix whose columns are laws of x, one for each state z. The generator need not be
invertible: several states may give the same x. From the joint law of three views that are independent given
the state, an eigenvalue problem recovers the columns, up to the order of the states. Axes: x values of a
view, k states.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class RecoveredViews:
    """The laws of the last view for each state, and the probabilities of the states."""

    columns: Float[Tensor, "x k"]
    weights: Float[Tensor, " k"]


def recover_views(joint: Float[Tensor, "x y w"], num_states: int) -> RecoveredViews:
    """The columns p(x_2 | z) from p(x_0, x_1, x_2): eigenvectors of one matrix, eigenvalues of another.

    For each value of the second view, take the joint matrix of the last and the first view. After
    normalization these matrices have common eigenvectors: the laws of the last view. Their eigenvalues p(x_1
    | z) separate the states.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import multi_view_laws, recover_views
        >>> views = multi_view_laws(num_views=3, num_values=4, num_states=3, seed=0)
        >>> weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        >>> joint = torch.einsum("z,xz,yz,wz->xyw", weights, *views)
        >>> found = recover_views(joint, num_states=3)
        >>> order = found.columns[0].argsort(), views[2][0].argsort()
        >>> torch.allclose(found.columns[:, order[0]], views[2][:, order[1]])
        True

    References:
        "Factored Generative Models through Mechanism Diversity", Proposition 3.
    """
    joint = joint.double()
    last_first = joint.sum(1).T  # p(x_2, x_0)
    left, singular, right = torch.linalg.svd(last_first)
    if singular[num_states - 1] < 1e-10 * singular[0]:
        raise ValueError(f"the views tell fewer than {num_states} states apart: they are not injective")
    left, right = left[:, :num_states], right[:num_states].T
    inverse = torch.linalg.inv(left.T @ last_first @ right)
    # A random mixture of the values of x_1 has distinct eigenvalues where any value has.
    mix = torch.rand(joint.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = torch.einsum("ayc,y->ca", joint, mix)
    _, vectors = torch.linalg.eig(left.T @ mixed @ right @ inverse)
    columns = (left.to(vectors.dtype) @ vectors).real
    columns = columns / columns.sum(0)
    weights = torch.linalg.lstsq(columns, joint.sum((0, 1))[:, None]).solution[:, 0]
    return RecoveredViews(columns, weights)


def multi_view_laws(
    num_views: int, num_values: int, num_states: int, seed: int
) -> list[Float[Tensor, "x k"]]:
    """Random views with overlapping laws: no value of x identifies its state with certainty.

    Examples:
        >>> from worldmodel.diagnostics import multi_view_laws
        >>> first, second = multi_view_laws(num_views=2, num_values=4, num_states=3, seed=0)
        >>> tuple(first.shape), first.sum(0).round(decimals=6).tolist()
        ((4, 3), [1.0, 1.0, 1.0])
    """
    source = torch.Generator().manual_seed(seed)
    draws = torch.rand(num_views, num_values, num_states, generator=source, dtype=torch.float64) + 0.05
    return list(draws / draws.sum(1, keepdim=True))
