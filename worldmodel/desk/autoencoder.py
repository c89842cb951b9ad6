"""The desk autoencoder: small and causal, with the encode / decode interface of AutoencoderKLWan.

Frame 0 makes latent frame 0 alone (repeated four times), frames 4j-3 .. 4j make latent frame j, so each
latent depends on its own frames only, and in a static video all latent frames are equal. The main path is a
linear patch transform, initialized by PCA. Convolutions whose output starts at zero refine both directions,
at the size of the latents or on two scales.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.types import FRAMES_PER_LATENT, num_latent_frames

MIN_LOGVAR = -30.0  # AutoencoderKLWan clamps here: the posterior is a point
GROUP = 3 * FRAMES_PER_LATENT  # channels of the four frames of a latent
HALF = 2  # pixels per cell and side on the finer of the two scales


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, added to the input; with or without group norm, which is slow on a CPU."""

    def __init__(self, width: int, *, has_norm: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_convolution(width, has_norm), *_convolution(width, has_norm))

    def forward(self, x: Float[Tensor, "n d h w"]) -> Float[Tensor, "n d h w"]:
        """The refined features."""
        return x + self.layers(x)


class CausalAutoencoder(ModelMixin, ConfigMixin):
    """1 + 4k frames in [-1, 1] to 1 + k latent frames and back, at one fixed resolution."""

    @register_to_config
    def __init__(
        self,
        height: int = 64,
        width: int = 64,
        z_dim: int = 16,
        scale_factor_spatial: int = 4,
        hidden: int = 64,
        num_blocks: int = 2,
        num_scales: int = 1,
        latents_mean: Sequence[float] = (0.0,) * 16,
        latents_std: Sequence[float] = (1.0,) * 16,
        scale_factor_temporal: int = FRAMES_PER_LATENT,
    ) -> None:
        super().__init__()
        size = scale_factor_spatial
        if num_scales not in (1, 2) or (num_scales == 2 and size % HALF):
            raise ValueError(
                f"num_scales is 1, or 2 where scale_factor_spatial is a multiple of {HALF}, got {num_scales} "
                f"and {size}"
            )
        if height % size or width % size:
            raise ValueError(f"height and width must be multiples of {size}, got {height}x{width}")
        if len(latents_mean) != z_dim or len(latents_std) != z_dim:
            raise ValueError(f"latents_mean and latents_std need z_dim = {z_dim} values each")
        self.register_buffer("mean_image", torch.zeros(3, height, width))
        self.analysis = nn.Conv2d(GROUP * size * size, z_dim, 1)
        self.synthesis = nn.Conv2d(z_dim, GROUP * size * size, 1)
        # Pixels per side of the convolutions' input cells.
        self.cell = cell = size if num_scales == 1 else HALF
        channels, step = GROUP * cell * cell, size // cell
        make = _one_scale if num_scales == 1 else partial(_two_scales, step=step)
        self.encoder, self.decoder = make(channels, z_dim, hidden=hidden, num_blocks=num_blocks)

    def encode(self, x: Float[Tensor, "b 3 t H W"], return_dict: bool = True) -> AutoencoderKLOutput:
        """A point posterior over the latents: `.latent_dist.mode()` is [b z f h w]."""
        groups = self._to_groups(x)
        latents = self.analysis(F.pixel_unshuffle(groups, self.config["scale_factor_spatial"]))
        latents = latents + self.encoder(F.pixel_unshuffle(groups, self.cell))
        latents = rearrange(latents, "(b f) z h w -> b z f h w", b=len(x))
        posterior = DiagonalGaussianDistribution(
            torch.cat([latents, torch.full_like(latents, MIN_LOGVAR)], 1), deterministic=True
        )
        return AutoencoderKLOutput(latent_dist=posterior)

    def decode(self, z: Float[Tensor, "b z f h w"], return_dict: bool = True) -> DecoderOutput:
        """`.sample` is [b 3 t H W] in [-1, 1]."""
        latents = rearrange(z, "b z f h w -> (b f) z h w")
        groups = F.pixel_shuffle(self.synthesis(latents), self.config["scale_factor_spatial"])
        groups = groups + F.pixel_shuffle(self.decoder(latents), self.cell)
        return DecoderOutput(sample=self._from_groups(groups, len(z)).clamp(-1, 1))

    @torch.no_grad()
    def initialize_from(self, x: Float[Tensor, "b 3 t H W"]) -> None:
        """Set the mean image and the linear path from frames, by PCA of their patches (closed form)."""
        self._check_size(x)
        self.mean_image.copy_(x.mean((0, 2)))
        patches = F.pixel_unshuffle(self._to_groups(x), self.config["scale_factor_spatial"])
        patches = rearrange(patches, "n p h w -> (n h w) p").double()
        mean = patches.mean(0)
        covariance = torch.cov((patches - mean).T)
        basis = torch.linalg.eigh(covariance).eigenvectors[:, -self.config["z_dim"] :].flip(1)
        self.analysis.load_state_dict({"weight": basis.T[:, :, None, None], "bias": -(mean @ basis)})
        self.synthesis.load_state_dict({"weight": basis[:, :, None, None], "bias": mean})

    @torch.no_grad()
    def set_latent_statistics(self, x: Float[Tensor, "b 3 t H W"]) -> None:
        """Set the latents' mean, and a scale halfway between whitening and one scale for all channels."""
        latents = self.encode(x).latent_dist.mode().float()
        std = latents.std((0, 2, 3, 4))
        scale = (std * latents.std()).sqrt()
        self.register_to_config(
            latents_mean=tuple(latents.mean((0, 2, 3, 4)).tolist()), latents_std=tuple(scale.tolist())
        )

    def _check_size(self, x: Tensor) -> None:
        expected = (self.config["height"], self.config["width"])
        if tuple(x.shape[-2:]) != expected:
            raise ValueError(
                f"this autoencoder takes frames of {expected} pixels (height, width), "
                f"got {tuple(x.shape[-2:])}"
            )

    def _to_groups(self, x: Float[Tensor, "b 3 t H W"]) -> Float[Tensor, "n 12 H W"]:
        """The four frames of each latent as the channels of one picture, minus the mean image."""
        self._check_size(x)
        num_latent_frames(x.shape[2])
        centered = x - self.mean_image[:, None]
        first = repeat(centered[:, :, :1], "b c 1 H W -> b c r H W", r=FRAMES_PER_LATENT)
        frames = torch.cat([first, centered[:, :, 1:]], 2)
        return rearrange(frames, "b c (f r) H W -> (b f) (r c) H W", r=FRAMES_PER_LATENT)

    def _from_groups(self, groups: Float[Tensor, "n 12 H W"], batch: int) -> Float[Tensor, "b 3 t H W"]:
        frames = rearrange(groups, "(b f) (r c) H W -> b c f r H W", b=batch, c=3)
        # Latent frame 0 represents one frame: its four outputs are averaged.
        first = frames[:, :, 0].mean(2, keepdim=True)
        rest = rearrange(frames[:, :, 1:], "b c f r H W -> b c (f r) H W")
        return torch.cat([first, rest], 2) + self.mean_image[:, None]


def _one_scale(
    patch: int, z_dim: int, *, hidden: int, num_blocks: int
) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder and decoder at the size of the latents."""

    def layers(inputs: int, outputs: int) -> nn.Sequential:
        blocks = [ResidualBlock(hidden) for _ in range(num_blocks)]
        return nn.Sequential(
            nn.Conv2d(inputs, hidden, 3, padding=1), *blocks, nn.SiLU(), _zero_conv(hidden, outputs, 1)
        )

    return layers(patch, z_dim), layers(z_dim, patch)


def _two_scales(
    half: int, z_dim: int, *, hidden: int, num_blocks: int, step: int
) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder and decoder that also process cells of 2x2 pixels, with half the channels there."""
    fine = hidden // 2

    def blocks(width: int) -> list[ResidualBlock]:
        return [ResidualBlock(width, has_norm=False) for _ in range(num_blocks)]

    encoder = nn.Sequential(
        *(nn.Conv2d(half, fine, 3, padding=1), *blocks(fine), nn.SiLU()),
        *(nn.PixelUnshuffle(step), nn.Conv2d(fine * step * step, hidden, 1)),
        *(*blocks(hidden), nn.SiLU(), _zero_conv(hidden, z_dim, 1)),
    )
    decoder = nn.Sequential(
        *(nn.Conv2d(z_dim, hidden, 3, padding=1), *blocks(hidden), nn.SiLU()),
        *(nn.Conv2d(hidden, fine * step * step, 1), nn.PixelShuffle(step)),
        *(*blocks(fine), nn.SiLU(), _zero_conv(fine, half, 3)),
    )
    return encoder, decoder


def _convolution(width: int, has_norm: bool) -> list[nn.Module]:
    layers = [nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)]
    return [nn.GroupNorm(8, width), *layers] if has_norm else layers


def _zero_conv(inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
    """A zero-initialized convolution."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
