"""Encoder-decoders that a context module can be put into: the light VAE, image VAEs, MDDiff's first stage.

A host is anything with the six members of `HOST_MEMBERS`. `as_host` wraps models with other names for them.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.vq_model import VQModel
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from worldmodel.context_module.models.light_vae import LightVae, LightVaeConfig
from worldmodel.md_vae.gaussian import Gaussian
from worldmodel.mddiff.models.first_stage import (
    DecoderConditionConfig,
    FirstStage,
    VqConfig,
    build_vq,
)
from worldmodel.mddiff.models.image_vae import ImageVae, ImageVaeConfig
from worldmodel.mddiff.models.mddiff import MDDiff

LATENT_STD = 0.1  # noise added to the deterministic latents of a first stage, in their standard deviations
PIXEL_STD = 0.1  # standard deviation of its pixels in [0, 1]


HOST_MEMBERS = {
    "latent_dim": "size of the latent that decode takes",
    "pixels": "uint8 pictures [n 3 H W] -> the float pictures [n c H W] that the networks take",
    "posterior": "pixels [n c H W] -> Gaussian over latents [n d]",
    "decode": "latents [n d] -> log odds or means [n c H W]",
    "pictures": "decoded [n c H W] -> RGB pictures in [0, 1] [n 3 H W]",
    "nll": "pixels and decoded [n c H W] -> -log p(picture | latent) in nats [n]",
}


class ImageVaeHost(nn.Module):
    """An image VAE of the concept study (beta-VAE, beta-TCVAE, ...)."""

    def __init__(self, vae: ImageVae) -> None:
        super().__init__()
        if not vae.is_variational:
            raise ValueError("a host needs a posterior with a spread: use family beta_vae, not autoencoder")
        self.vae = vae

    @property
    def latent_dim(self) -> int:
        """Number of codes."""
        return self.vae.config.num_codes

    def pixels(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n c H W"]:
        """Pictures in [0, 1]."""
        return self.vae.pixels(images)

    def posterior(self, pixels: Float[Tensor, "n c H W"]) -> Gaussian:
        """q(z | x)."""
        return self.vae.posterior(pixels)

    def decode(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n c H W"]:
        """Log odds of each pixel."""
        return self.vae.logits(latents)

    def pictures(self, decoded: Float[Tensor, "n c H W"]) -> Float[Tensor, "n 3 H W"]:
        """Mean of each pixel."""
        return decoded.sigmoid().expand(-1, 3, -1, -1)

    def nll(self, pixels: Float[Tensor, "n c H W"], decoded: Float[Tensor, "n c H W"]) -> Float[Tensor, " n"]:
        """Negative log likelihood of Bernoulli pixels, in nats."""
        return F.binary_cross_entropy_with_logits(decoded, pixels, reduction="none").flatten(1).sum(1)


class FirstStageHost(nn.Module):
    """The VQ-VAE of EncDiff and MDDiff: unit-variance latents with a little noise, Gaussian pixels."""

    latent_scale: Tensor  # 1 / standard deviation of raw latents

    def __init__(self, vq: VQModel, image_size: int) -> None:
        super().__init__()
        self.stage = FirstStage(vq, DecoderConditionConfig(where="none"), 0)
        channels = vq.quant_conv.out_channels
        side = image_size // 2 ** (len(vq.encoder.down_blocks) - 1)
        self.shape, self.image_size = (channels, side, side), image_size
        self.register_buffer("latent_scale", torch.ones(()))

    @property
    def latent_dim(self) -> int:
        """Channels times positions."""
        return math.prod(self.shape)

    def pixels(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n c H W"]:
        """Pictures in [-1, 1]."""
        if images.shape[-2:] != (self.image_size,) * 2:
            raise ValueError(
                f"this model takes pictures of {self.image_size}x{self.image_size}, "
                f"got {tuple(images.shape[-2:])}"
            )
        return images.float() / 127.5 - 1

    @torch.no_grad()
    def set_latent_scale(self, images: UInt8[Tensor, "n 3 H W"]) -> None:
        """Measure the scale on some pictures."""
        self.latent_scale.copy_(1 / self.stage.encode(self.pixels(images)).std())

    def posterior(self, pixels: Float[Tensor, "n c H W"]) -> Gaussian:
        """The latent before quantization, with a fixed standard deviation."""
        mean = (self.stage.encode(pixels) * self.latent_scale).flatten(1)
        return Gaussian(mean, torch.full_like(mean, math.log(LATENT_STD)))

    def decode(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n c H W"]:
        """Pictures in [-1, 1] from the nearest codes."""
        codes = self.stage.quantize(latents.unflatten(1, self.shape) / self.latent_scale)
        return self.stage.decode(codes, latents.new_zeros(len(latents), 0))

    def pictures(self, decoded: Float[Tensor, "n c H W"]) -> Float[Tensor, "n 3 H W"]:
        """Pictures in [0, 1]."""
        return (decoded / 2 + 0.5).clamp(0, 1)

    def nll(self, pixels: Float[Tensor, "n c H W"], decoded: Float[Tensor, "n c H W"]) -> Float[Tensor, " n"]:
        """Negative log likelihood of Gaussian pixels in [0, 1], in nats."""
        error = ((pixels - decoded) / 2).flatten(1)
        constant = math.log(PIXEL_STD) + 0.5 * math.log(2 * math.pi)
        return error.square().sum(1) / (2 * PIXEL_STD**2) + error.shape[1] * constant


@dataclass(frozen=True)
class HostConfig:
    """Which host, and its sizes."""

    kind: Literal["light_vae", "image_vae", "first_stage", "other"] = "light_vae"  # other: user's module
    light_vae: LightVaeConfig = field(default_factory=LightVaeConfig)  # of kind light_vae
    image_vae: ImageVaeConfig = field(default_factory=ImageVaeConfig)  # of kind image_vae
    first_stage: VqConfig = field(default_factory=VqConfig)  # of kind first_stage
    image_size: int = 64  # pixels a side of kind first_stage; the others have their own


def build_host(config: HostConfig) -> nn.Module:
    """A host with random weights."""
    if config.kind == "light_vae":
        return LightVae(config.light_vae)
    if config.kind == "image_vae":
        return ImageVaeHost(ImageVae(config.image_vae))
    if config.kind == "first_stage":
        return FirstStageHost(build_vq(config.first_stage), config.image_size)
    raise ValueError("a host of kind 'other' is built by its owner: pass it to wrap_host")


def as_host(model: nn.Module, image_size: int = 64) -> tuple[nn.Module, HostConfig]:
    """Wrap a model as a host and describe it in a config; `image_size` is for a bare VQ-VAE."""
    if isinstance(model, ImageVae):
        return ImageVaeHost(model), HostConfig("image_vae", image_vae=model.config)
    if isinstance(model, MDDiff):
        config = HostConfig("first_stage", first_stage=model.config.vq, image_size=model.config.image_size)
        host = FirstStageHost(model.first_stage.vq, config.image_size)
        host.latent_scale.copy_(model.latent_scale)
        return host, config
    if isinstance(model, VQModel):
        config = HostConfig("first_stage", first_stage=vq_config(model), image_size=image_size)
        return FirstStageHost(model, image_size), config
    if isinstance(model, LightVae):
        return model, HostConfig("light_vae", light_vae=model.config)
    # Checked by name: from Python 3.12 on, isinstance ignores attributes that __getattr__ forwards.
    if missing := [f"{name} ({what})" for name, what in HOST_MEMBERS.items() if not hasattr(model, name)]:
        raise ValueError(f"{type(model).__name__} is not a host: {', '.join(missing)} missing")
    return model, HostConfig("other")


def vq_config(vq: VQModel) -> VqConfig:
    """The sizes of an existing VQ-VAE."""
    widths = vq.config["block_out_channels"]
    return VqConfig(
        channels=widths[0],
        multipliers=tuple(width // widths[0] for width in widths),
        num_res_blocks=vq.config["layers_per_block"],
        latent_channels=vq.config["latent_channels"],
        num_codes=vq.config["num_vq_embeddings"],
        mid_attention=vq.config["mid_block_add_attention"],
        norm_groups=vq.config["norm_num_groups"],
    )
