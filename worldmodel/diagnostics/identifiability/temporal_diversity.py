"""Proposition 2 in a simulation: the past replaces an unobserved condition.

    x_{t+1} = A (z_{t+1} * scale(x_t)),    z_t independent N(0, 1),    scale depends on the past

Given the past, the generator is one of many, and z does not depend on it: the setting of Theorem 1 with u = a
function of the past alone. To a static model, x is a single Gaussian, from which A cannot be identified.
Axes: n time steps, d latents.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.diagnostics.identifiability.joint_diagonalization import ConditionAlignment
from worldmodel.diagnostics.identifiability.mcc import mcc


@dataclass(frozen=True)
class TemporalRecovery:
    """Mean correlation of the recovered latents with the true ones, for three kinds of condition."""

    past: float  # contexts computed from the past observation
    shuffled: float  # the same contexts at other times: a control that must fail
    static: float  # no context at all: whitening


def simulate_temporal(
    num_steps: int, latent_dim: int, seed: int, *, strength: float = 0.5
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Latents and observations of one series; with strength 0 the past has no effect.

    Examples:
        >>> from worldmodel.diagnostics import simulate_temporal
        >>> latents, observations = simulate_temporal(100, 3, seed=0)
        >>> tuple(latents.shape), tuple(observations.shape)
        ((100, 3), (100, 3))
    """
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(num_steps, latent_dim, generator=source, dtype=torch.float64)
    mixing = torch.randn(latent_dim, latent_dim, generator=source, dtype=torch.float64)
    mixing = torch.linalg.qr(mixing)[0] @ torch.diag(torch.linspace(1, 2, latent_dim, dtype=torch.float64))
    influence = torch.randn(latent_dim, latent_dim, generator=source, dtype=torch.float64)
    x = torch.zeros_like(z)
    for t in range(1, num_steps):
        scale = torch.exp(strength * torch.tanh(influence @ x[t - 1]))
        x[t] = mixing @ (z[t] * scale)
    return z, x


def temporal_recovery(
    z: Float[Tensor, "n d"], x: Float[Tensor, "n d"], *, num_contexts: int = 16, seed: int = 0
) -> TemporalRecovery:
    """Unmix x from its covariances given different pasts, and score the result against z.

    Examples:
        >>> from worldmodel.diagnostics import simulate_temporal, temporal_recovery
        >>> found = temporal_recovery(*simulate_temporal(6000, 3, seed=1))
        >>> found.past > 0.95 > 0.9 > found.static
        True

    References:
        "Factored Generative Models through Mechanism Diversity", Proposition 2.
    """
    source = torch.Generator().manual_seed(seed)
    context = _contexts(x[:-1], num_contexts, source)
    shuffled = context[torch.randperm(len(context), generator=source)]
    scores = {
        name: _score(z[1:], x[1:], labels)
        for name, labels in (("past", context), ("shuffled", shuffled), ("static", torch.zeros_like(context)))
    }
    return TemporalRecovery(**scores)


def _contexts(past: Float[Tensor, "n d"], count: int, source: torch.Generator) -> Int[Tensor, " n"]:
    """Voronoi cells of the past observations around randomly chosen ones."""
    centers = past[torch.randperm(len(past), generator=source)[:count]]
    return torch.cdist(past / past.std(0), centers / past.std(0)).argmin(1)


def _score(z: Float[Tensor, "n d"], x: Float[Tensor, "n d"], context: Int[Tensor, " n"]) -> float:
    kept = torch.bincount(context)[context] > 10 * x.shape[1]  # covariances of small cells are noise
    _, labels = torch.unique(context[kept], return_inverse=True)
    aligned = ConditionAlignment().fit(x[kept][None], labels[None]).transform(x[kept][None], labels[None])
    return mcc(z[kept].numpy(), aligned[0].numpy()).value
