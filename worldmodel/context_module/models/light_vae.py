"""The light VAE of the context study: strided 4x4 convolutions, one hidden layer, Bernoulli pixels."""

import itertools
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.md_vae.gaussian import Gaussian
from worldmodel.types import to_unit_range

MAX_GROUPS = 8  # of a group norm


@dataclass(frozen=True)
class LightVaeConfig:
    """Sizes of the small VAE."""

    image_size: int = 64  # pixels a side
    channels: tuple[int, ...] = (32, 64, 128, 256)  # of each convolution, from the picture inwards
    hidden: int = 128  # units of the fully connected layers
    latent_dim: int = 192  # of z, the decoder's input
    norm: Literal["batch", "group", "none"] = "batch"  # published: batch (context-dependent)

    def __post_init__(self) -> None:
        check_ranges(
            self, image_size=(1, 4096), channels=(1, 8192), hidden=(1, 1 << 16), latent_dim=(1, 1 << 16)
        )
        if not self.channels or self.image_size % 2 ** len(self.channels):
            raise ValueError(
                f"image_size {self.image_size} must be a multiple of {2 ** len(self.channels)} "
                f"for {len(self.channels)} convolutions of stride 2"
            )


class LightVae(nn.Module):
    """Pictures to a Gaussian over latents, and latents to log odds of pixels."""

    def __init__(self, config: LightVaeConfig) -> None:
        super().__init__()
        self.config = config
        side = config.image_size // 2 ** len(config.channels)
        inner = (config.channels[-1], side, side)
        self.encoder = nn.Sequential(
            *_stages((3, *config.channels), nn.Conv2d, config.norm),
            *(nn.Flatten(), nn.Linear(inner[0] * side**2, config.hidden), nn.ReLU()),
            nn.Linear(config.hidden, 2 * config.latent_dim),
        )
        self.decoder = nn.Sequential(
            *(nn.Linear(config.latent_dim, config.hidden), nn.ReLU()),
            *(nn.Linear(config.hidden, inner[0] * side**2), nn.ReLU(), nn.Unflatten(1, inner)),
            *_stages(config.channels[::-1], nn.ConvTranspose2d, config.norm),
            nn.ConvTranspose2d(config.channels[0], 3, 4, stride=2, padding=1),
        )

    @property
    def latent_dim(self) -> int:
        """Size of z."""
        return self.config.latent_dim

    def pixels(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n 3 H W"]:
        """Pictures in [0, 1]."""
        size = self.config.image_size
        if images.shape[-2:] != (size, size):
            raise ValueError(f"this model takes pictures of {size}x{size}, got {tuple(images.shape[-2:])}")
        return to_unit_range(images)

    def posterior(self, pixels: Float[Tensor, "n 3 H W"]) -> Gaussian:
        """q(z | x)."""
        mean, log_variance = self.encoder(pixels).chunk(2, dim=1)
        return Gaussian(mean, log_variance / 2)

    def decode(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n 3 H W"]:
        """Log odds of each pixel."""
        logits: Tensor = self.decoder(latents)
        return logits

    def pictures(self, decoded: Float[Tensor, "n 3 H W"]) -> Float[Tensor, "n 3 H W"]:
        """Mean of each pixel, in [0, 1]."""
        return decoded.sigmoid()

    def nll(self, pixels: Float[Tensor, "n 3 H W"], decoded: Float[Tensor, "n 3 H W"]) -> Float[Tensor, " n"]:
        """-log p(x | z) in nats per picture."""
        return F.binary_cross_entropy_with_logits(decoded, pixels, reduction="none").flatten(1).sum(1)


def _stages(widths: tuple[int, ...], convolution: type[nn.Module], norm: str) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers.append(convolution(before, after, 4, stride=2, padding=1))
        layers += [_norm(after)] if norm == "group" else [nn.BatchNorm2d(after)] if norm == "batch" else []
        layers.append(nn.ReLU())
    return layers


def _norm(width: int) -> nn.GroupNorm:
    groups = next(count for count in range(MAX_GROUPS, 0, -1) if width % count == 0)
    return nn.GroupNorm(groups, width)
