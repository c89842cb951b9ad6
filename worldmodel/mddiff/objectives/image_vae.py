"""Training losses of the image autoencoders, in nats per image.

    autoencoder    w R
    beta_vae       w R + beta KL
    beta_tcvae     w R + KL + (beta - 1) TC, TC from the batch
    factor_vae     w R + KL + gamma TC, TC from a jointly trained discriminator

R = -E log p(x | z) with Bernoulli pixels, summed over pixels and channels; w is `pixel_weight`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor
from torch.func import functional_call

from worldmodel.md_vae.gaussian import standard_kl
from worldmodel.mddiff.models.image_vae import ImageVae
from worldmodel.mddiff.objectives.total_correlation import (
    batch_total_correlation,
    discriminator_loss,
    discriminator_total_correlation,
)
from worldmodel.types import Losses


def image_vae_loss(
    model: ImageVae, images: UInt8[Tensor, "n 3 H W"], generator: torch.Generator, num_pictures: int
) -> Losses:
    """The loss of the model's family on one batch; `num_pictures` is the size of the dataset."""
    config, pixels = model.config, model.pixels(images)
    posterior = model.posterior(pixels)
    noise = torch.randn(posterior.mean.shape, generator=generator)
    codes = posterior.sample(noise.to(pixels.device)) if model.is_variational else posterior.mean
    logits = model.logits(codes)
    reconstruction = F.binary_cross_entropy_with_logits(logits, pixels, reduction="sum") / len(pixels)
    parts = {"reconstruction": reconstruction, "mse": (logits.sigmoid() - pixels).square().mean()}
    total = config.pixel_weight * reconstruction
    if model.is_variational:
        parts["kl"] = standard_kl(posterior).mean()
        total = total + (config.beta if config.family == "beta_vae" else 1.0) * parts["kl"]
    if config.family == "beta_tcvae":
        parts["total_correlation"] = batch_total_correlation(codes, posterior, num_pictures)
        total = total + (config.beta - 1) * parts["total_correlation"]
    if (discriminator := model.discriminator) is not None:
        # Frozen, so that the autoencoder lowers the estimate through its codes and not by weakening the
        # discriminator.
        fixed = {name: weight.detach() for name, weight in discriminator.named_parameters()}
        estimate = discriminator_total_correlation(
            codes, lambda z: functional_call(discriminator, fixed, (z,))
        )
        parts["discriminator"] = discriminator_loss(codes, discriminator, generator)
        parts["total_correlation"] = estimate
        total = total + config.gamma * estimate + parts["discriminator"]
    return Losses(total, {name: part.detach() for name, part in parts.items()})
