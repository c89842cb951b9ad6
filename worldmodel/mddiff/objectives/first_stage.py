"""One training step of the first stage: pixel, LPIPS, codebook and adversarial losses in one backward pass.

The discriminator's own loss uses detached images, and the autoencoder's adversarial loss uses detached
discriminator weights, so one backward pass gives each network its own gradient.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.vq_model import VQModel
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from worldmodel.mddiff.models.patch_discriminator import PatchDiscriminator
from worldmodel.mddiff.models.perceptual import PerceptualDistance
from worldmodel.types import Losses


@dataclass(frozen=True)
class VqObjective:
    """Weights of the first stage's losses, relative to a pixel loss of weight 1."""

    # Without LPIPS, L1 is already low for plain background if the object is small.
    pixel_loss: Literal["l1", "l2"] = "l1"  # distance of pixels in [-1, 1]; published: l1
    codebook_weight: float = 1.0  # codes to latents and latents to codes
    perceptual: str = ""  # safetensors file of LPIPS (VGG-16) weights; empty: no perceptual loss
    perceptual_weight: float = 1.0  # weight of LPIPS, if its weights are given
    adversarial_weight: float = 0.75  # weight of the patch discriminator after gradient balancing; 0 = none


class VqGan(nn.Module):
    """The autoencoder with its discriminator and perceptual distance."""

    def __init__(self, vq: VQModel, objective: VqObjective) -> None:
        super().__init__()
        self.vq, self.objective = vq, objective
        self.discriminator = PatchDiscriminator() if objective.adversarial_weight else None
        self.perceptual = PerceptualDistance.load(objective.perceptual) if objective.perceptual else None


def vq_step(model: VqGan, images: UInt8[Tensor, "b 3 H W"], generator: torch.Generator) -> Losses:
    """Losses of one batch, without randomness."""
    pixels = images.float() / 127.5 - 1
    latents = model.vq.encode(pixels).latents
    codes, codebook, (_, _, indices) = model.vq.quantize(latents)
    rebuilt = model.vq.decode(codes, force_not_quantize=True).sample
    weights = model.objective
    reconstruction = (F.l1_loss if weights.pixel_loss == "l1" else F.mse_loss)(rebuilt, pixels)
    parts = {"reconstruction": reconstruction, "codebook": codebook}
    faithful = reconstruction
    if model.perceptual is not None:
        parts["perceptual"] = model.perceptual(rebuilt, pixels).mean()
        faithful = faithful + weights.perceptual_weight * parts["perceptual"]
    total = faithful + weights.codebook_weight * codebook
    if model.discriminator is not None:
        fooling, judging = _game(model.discriminator, rebuilt, pixels)
        balance = _balance(faithful, fooling, model.vq.decoder.conv_out.weight)
        total = total + weights.adversarial_weight * balance * fooling + judging
        parts |= {"fooling": fooling, "judging": judging, "balance": balance}
    parts["codes_used"] = rebuilt.new_tensor(float(indices.unique().numel()))
    return Losses(total, {name: value.detach() for name, value in parts.items()})


def _game(
    discriminator: PatchDiscriminator, rebuilt: Float[Tensor, "b 3 H W"], pixels: Float[Tensor, "b 3 H W"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Adversarial loss of the autoencoder and hinge loss of the discriminator."""
    frozen = {name: weight.detach() for name, weight in discriminator.named_parameters()}
    fooling = -torch.func.functional_call(discriminator, frozen, (rebuilt,)).mean()
    real, made = discriminator(pixels), discriminator(rebuilt.detach())
    return fooling, (F.relu(1 - real).mean() + F.relu(1 + made).mean()) / 2


def _balance(faithful: Float[Tensor, ""], fooling: Float[Tensor, ""], last: Tensor) -> Float[Tensor, ""]:
    """Ratio of gradient norms at the last layer, which balances adversarial and reconstruction losses."""
    if not torch.is_grad_enabled():
        return faithful.new_ones(())
    norms = [torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (faithful, fooling)]
    return (norms[0] / (norms[1] + 1e-4)).clamp(0, 1e4).detach()
