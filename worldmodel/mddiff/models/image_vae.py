"""The image autoencoders of the concept study: beta-VAE, FactorVAE, beta-TCVAE and a plain one.

All four share the convolutions of the reference study (Locatello et al. 2019): four of stride 2, one hidden
layer of 256, and the mirror image. Pixels are Bernoulli, one per channel. Codes are posterior means.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from worldmodel.checked import check_ranges, read_json, shorten
from worldmodel.checkpoint.folder import CONFIG_FILE, CONTRACT_FILE
from worldmodel.config import load_config, save_config
from worldmodel.device import AnyDevice, find_device
from worldmodel.files import read_module, replaced_folder, write_tensors
from worldmodel.md_vae.gaussian import Gaussian
from worldmodel.types import to_unit_range

FORMAT = {"format": 1, "model": "ImageVae"}
CHUNK = 512  # images or codes processed at once
CHANNELS = (32, 32, 64, 64)  # of each convolution, from the image inwards; smaller images skip the first
OUTER_KERNEL = 4  # of the first two convolutions
DECODER_CHANNELS = (64, 32, 32)  # after each transposed convolution but the last
INNER = 4  # pixels per side of the innermost feature map


@dataclass(frozen=True)
class ImageVaeConfig:
    """Which autoencoder, and its sizes."""

    family: Literal["beta_vae", "factor_vae", "beta_tcvae", "autoencoder"] = "beta_vae"  # which objective
    num_codes: int = 20  # N, scalars per image; the references use 10
    image_size: int = 64  # pixels per side: 64, 32 or 16
    channels: Literal[1, 3] = 3  # 1: images are gray, and only their first channel is modeled
    # With 2, patches do not overlap. At 32x32 only one overlapping convolution is left, and positions are
    # coded worse.
    inner_kernel: Literal[2, 4] = 2  # of the last two convolutions; 2 in the reference study
    hidden: int = 256  # units of the fully connected layers
    beta: float = 4.0  # weight of the KL term (beta_vae) or of the total correlation (beta_tcvae)
    # The weights of KL and total correlation are relative to a sum over pixels: published ones are for
    # 64x64 images; at 32x32, use four times the pixel weight.
    pixel_weight: float = 1.0  # weight of the reconstruction, all families
    gamma: float = 35.0  # weight of the total correlation (factor_vae)
    discriminator_width: int = 1000  # hidden units of each of the discriminator's six layers (factor_vae)

    def __post_init__(self) -> None:
        check_ranges(self, num_codes=(1, 4096), hidden=(1, 1 << 16), discriminator_width=(1, 1 << 14))
        if self.image_size not in (16, 32, 64):
            raise ValueError(f"image_size is 16, 32 or 64, got {self.image_size}")
        if self.num_codes < 1 or self.beta < 0 or self.gamma < 0 or self.pixel_weight <= 0:
            raise ValueError(
                "num_codes must be >= 1, beta and gamma >= 0, pixel_weight > 0, "
                f"got {self.num_codes}, {self.beta}, {self.gamma} and {self.pixel_weight}"
            )


class ImageVae(nn.Module):
    """`encode(images) -> codes`, `decode(codes) -> images`; `image_vae_loss.py` trains it.

    Examples:
        >>> import torch
        >>> from worldmodel import ImageVae
        >>> from worldmodel.mddiff.models.image_vae import ImageVaeConfig
        >>> model = ImageVae(ImageVaeConfig(family="beta_vae", image_size=32, num_codes=6)).eval()
        >>> images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> tuple(model.encode(images).shape)
        (2, 6)
    """

    def __init__(self, config: ImageVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.is_variational = config.family != "autoencoder"
        num_stages = (config.image_size // INNER).bit_length() - 1
        self.encoder = _encoder(config, num_stages, config.num_codes * (2 if self.is_variational else 1))
        self.decoder = _decoder(config, num_stages)
        self.discriminator = _discriminator(config) if config.family == "factor_vae" else None

    def pixels(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n c H W"]:
        """Images as the networks expect them, in [0, 1]."""
        size = self.config.image_size
        if images.shape[-2:] != (size, size):
            raise ValueError(f"this model takes pictures of {size}x{size}, got {tuple(images.shape[-2:])}")
        device = next(self.parameters()).device
        return to_unit_range(images[:, : self.config.channels].to(device))

    def posterior(self, pixels: Float[Tensor, "n c H W"]) -> Gaussian:
        """q(z | x); for a plain autoencoder the standard deviation is zero."""
        out = self.encoder(pixels)
        if not self.is_variational:
            return Gaussian(out, torch.full_like(out, -torch.inf))
        mean, log_variance = out.chunk(2, dim=1)
        return Gaussian(mean, log_variance / 2)

    def logits(self, codes: Float[Tensor, "n d"]) -> Float[Tensor, "n c H W"]:
        """Log odds of each pixel."""
        logits: Tensor = self.decoder(codes)
        return logits

    @torch.no_grad()
    def encode(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n d"]:
        """The codes of images."""
        return torch.cat([self.posterior(self.pixels(chunk)).mean for chunk in images.split(CHUNK)])

    @torch.no_grad()
    def decode(self, codes: Float[Tensor, "n d"]) -> Float[Tensor, "n 3 H W"]:
        """Images in [0, 1]: the mean of each pixel."""
        codes = codes.to(next(self.parameters()).device)
        made = torch.cat([self.logits(chunk).sigmoid() for chunk in codes.split(CHUNK)])
        return made.expand(-1, 3, -1, -1)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config and weights as one folder, replacing an older one only when complete."""
        with replaced_folder(Path(folder), CONTRACT_FILE) as new:
            save_config(self.config, new / CONFIG_FILE)
            (new / CONTRACT_FILE).write_text(json.dumps(FORMAT) + "\n")
            write_tensors(new / "model.safetensors", self.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: AnyDevice = "auto") -> "ImageVae":
        """Load a saved model, in evaluation mode, onto a device (see `device.py`)."""
        place = find_device(device)
        path = Path(folder) / CONTRACT_FILE
        if not path.is_file():
            raise ValueError(f"no model at {folder}: expected {path.name} in it")
        if (found := read_json(path)) != FORMAT:
            raise ValueError(f"{path}: expected {FORMAT}, got {shorten(found)}")
        config = load_config(ImageVaeConfig, os.fspath(path.with_name(CONFIG_FILE)))
        model = read_module(lambda: cls(config), path.with_name("model.safetensors"), str(folder))
        return model.eval().to(place)


def _encoder(config: ImageVaeConfig, num_stages: int, out_dim: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    width: int = config.channels
    kernels = (OUTER_KERNEL, OUTER_KERNEL, config.inner_kernel, config.inner_kernel)
    for channels, kernel in list(zip(CHANNELS, kernels, strict=True))[-num_stages:]:
        layers += [nn.Conv2d(width, channels, kernel, stride=2, padding=kernel // 2 - 1), nn.ReLU()]
        width = channels
    inner = width * INNER**2
    layers += [nn.Flatten(), nn.Linear(inner, config.hidden), nn.ReLU(), nn.Linear(config.hidden, out_dim)]
    return nn.Sequential(*layers)


def _decoder(config: ImageVaeConfig, num_stages: int) -> nn.Sequential:
    width = CHANNELS[-1]
    layers: list[nn.Module] = [nn.Linear(config.num_codes, config.hidden), nn.ReLU()]
    layers += [nn.Linear(config.hidden, width * INNER**2), nn.ReLU(), nn.Unflatten(1, (width, INNER, INNER))]
    for channels in (*DECODER_CHANNELS[: num_stages - 1], config.channels):
        layers += [nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1), nn.ReLU()]
        width = channels
    return nn.Sequential(*layers[:-1])  # the last layer outputs log odds, without a ReLU


def _discriminator(config: ImageVaeConfig) -> nn.Sequential:
    """Classifies joint codes (first logit) against codes shuffled in each dimension (second logit)."""
    layers: list[nn.Module] = []
    width = config.num_codes
    for _ in range(6):
        layers += [nn.Linear(width, config.discriminator_width), nn.LeakyReLU(0.2)]
        width = config.discriminator_width
    return nn.Sequential(*layers, nn.Linear(width, 2))
