"""Total correlation of codes, KL(q(z) || prod_d q(z_d)): from the batch itself, or from a discriminator.

Axes: n codes of a batch, d dimensions.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from worldmodel.md_vae.gaussian import Gaussian

Discriminator = Callable[[Float[Tensor, "n d"]], Float[Tensor, "n 2"]]


def batch_total_correlation(
    codes: Float[Tensor, "n d"], posterior: Gaussian, num_pictures: int
) -> Float[Tensor, ""]:
    """Minibatch-weighted estimate of Chen et al. (2018): q(z) is the mixture of the batch's posteriors.

    `num_pictures` is the size of the whole dataset; it shifts the estimate but not its gradient.
    """
    log_densities = _log_normal(codes[:, None], posterior.mean[None], posterior.log_std[None])
    count = math.log(len(codes) * num_pictures)
    joint = log_densities.sum(2).logsumexp(1) - count
    marginals = (log_densities.logsumexp(1) - count).sum(1)
    return (joint - marginals).mean()


def discriminator_total_correlation(
    codes: Float[Tensor, "n d"], discriminator: Discriminator
) -> Float[Tensor, ""]:
    """Density-ratio estimate of Kim & Mnih (2018): the discriminator's log odds for joint codes."""
    logits = discriminator(codes)
    return (logits[:, 0] - logits[:, 1]).mean()


def discriminator_loss(
    codes: Float[Tensor, "n d"], discriminator: Discriminator, generator: torch.Generator
) -> Float[Tensor, ""]:
    """Cross-entropy of classifying joint codes against shuffled ones; no gradient reaches the codes."""
    together = codes.detach()
    logits = discriminator(torch.cat([together, shuffled_apart(together, generator)]))
    labels = torch.arange(2, device=codes.device).repeat_interleave(len(codes))
    return F.cross_entropy(logits, labels)


def shuffled_apart(codes: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "n d"]:
    """Permute every dimension independently: a sample from the product of the marginals."""
    keys = torch.rand(codes.shape, generator=generator).to(codes.device)
    return codes.gather(0, keys.argsort(0))


def _log_normal(
    x: Float[Tensor, "n 1 d"], mean: Float[Tensor, "1 n d"], log_std: Float[Tensor, "1 n d"]
) -> Float[Tensor, "n n d"]:
    return -0.5 * ((x - mean) * torch.exp(-log_std)).square() - log_std - 0.5 * math.log(2 * math.pi)
