"""The evidence lower bound of Gaussian variational autoencoders, in nats per sample.

Axes: s models in parallel (optional), n samples, d latent dimensions, x observed dimensions.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Gaussian:
    """N(mean, L L^T) with L = diag(exp(log_std)) + `lower`; diagonal covariance when `lower` is absent."""

    mean: Float[Tensor, "*s n d"]
    log_std: Float[Tensor, "*s n d"]
    lower: Float[Tensor, "*s n d d"] | None = None  # strictly lower triangular

    def sample(self, noise: Float[Tensor, "*s n d"]) -> Float[Tensor, "*s n d"]:
        """The reparametrized draw mean + L noise."""
        draw = torch.addcmul(self.mean, noise, self.log_std.exp())
        return draw if self.lower is None else draw + (self.lower @ noise.unsqueeze(-1)).squeeze(-1)

    @property
    def covariance(self) -> Float[Tensor, "*s n d d"]:
        """The covariance matrix L L^T."""
        factor = torch.diag_embed(self.log_std.exp())
        factor = factor if self.lower is None else factor + self.lower
        return factor @ factor.transpose(-1, -2)


def kl_divergence(
    posterior: Gaussian, prior_mean: Float[Tensor, "*s n d"], prior_log_std: Float[Tensor, "*s n d"]
) -> Float[Tensor, "*s n"]:
    """KL(posterior || N(prior_mean, diag(exp(2 prior_log_std)))) in closed form."""
    inverse = torch.exp(-2 * prior_log_std)
    relative = 2 * (posterior.log_std - prior_log_std)
    spread = torch.exp(2 * posterior.log_std)
    if posterior.lower is not None:
        spread = spread + posterior.lower.square().sum(-1)
    distance = (posterior.mean - prior_mean).square()
    return 0.5 * ((spread + distance) * inverse - 1 - relative).sum(-1)


def standard_kl(posterior: Gaussian) -> Float[Tensor, "*s n"]:
    """KL(posterior || N(0, I))."""
    spread = torch.exp(2 * posterior.log_std)
    if posterior.lower is not None:
        spread = spread + posterior.lower.square().sum(-1)
    return 0.5 * (spread + posterior.mean.square() - 1 - 2 * posterior.log_std).sum(-1)


def gaussian_nll(
    x: Float[Tensor, "*s n x"], mean: Float[Tensor, "*s n x"], std: float | Float[Tensor, "*s"]
) -> Float[Tensor, "*s"]:
    """-log N(x; mean, std^2 I), mean over the samples of each model."""
    num_samples, dim = x.shape[-2:]
    log_std = std.log() if isinstance(std, Tensor) else math.log(std)
    # The norm reads the residual once; squaring and summing would write it twice more.
    squared = torch.linalg.vector_norm(mean - x, dim=(-2, -1)).square()
    return squared / (2 * std**2 * num_samples) + dim * (log_std + 0.5 * math.log(2 * math.pi))
