"""Penalties on how a generator depends on its latent, to compare MCL with: L1 Jacobian and Hessian penalty.

Axes: s seeds, n samples, d latents, x outputs.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Penalty = Literal["none", "jacobian_l1", "hessian"]
STEP = 0.1  # of the second differences


def jacobian_l1(
    generator: Callable[[Tensor], Tensor], z: Float[Tensor, "s n d"], rng: torch.Generator
) -> Float[Tensor, " s"]:
    """Mean |dG_j / dz_i| over j and samples, for one latent i drawn at each call."""
    direction = torch.zeros_like(z)
    direction[..., int(torch.randint(z.shape[-1], (), generator=rng))] = 1
    slope = torch.func.jvp(generator, (z,), (direction,))[1]
    return slope.abs().mean((-2, -1))


def hessian_penalty(
    generator: Callable[[Tensor], Tensor], z: Float[Tensor, "s n d"], rng: torch.Generator
) -> Float[Tensor, " s"]:
    """Variance of v^T H v over two random sign vectors v, mean over outputs (Peebles et al., 2020).

    It is zero exactly where all Hessians are diagonal.
    """
    signs = torch.randint(0, 2, (2, z.shape[-1]), generator=rng).to(z) * 2 - 1
    base = generator(z)
    bends = [
        (generator(z + STEP * v) - 2 * base + generator(z - STEP * v)) / STEP**2 for v in signs.to(z.device)
    ]
    return ((bends[0] - bends[1]).square() / 2).mean((-2, -1))


def penalty_of(
    kind: Penalty, generator: Callable[[Tensor], Tensor], z: Float[Tensor, "s n d"], rng: torch.Generator
) -> Float[Tensor, " s"]:
    """The penalty by its name."""
    return {"jacobian_l1": jacobian_l1, "hessian": hessian_penalty}[kind](generator, z, rng)
