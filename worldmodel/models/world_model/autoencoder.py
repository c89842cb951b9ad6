"""The desk autoencoder: small and causal, behind the encode / decode interface of AutoencoderKLWan.

Frame 0 makes latent frame 0 alone (repeated four times), frames 4j-3 .. 4j make latent frame j, so each
latent depends on its own frames only. A linear patch transform, initialized by PCA, carries the picture; a
convolutional residual that starts at zero refines both directions.
"""

from collections.abc import Sequence

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.types import FRAMES_PER_LATENT, num_latent_frames

MIN_LOGVAR = -30.0  # AutoencoderKLWan clamps here: the posterior is a point


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group norm, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
        )

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
        latents_mean: Sequence[float] = (0.0,) * 16,
        latents_std: Sequence[float] = (1.0,) * 16,
        scale_factor_temporal: int = FRAMES_PER_LATENT,
    ) -> None:
        super().__init__()
        size = scale_factor_spatial
        if height % size or width % size:
            raise ValueError(f"height and width must be multiples of {size}, got {height}x{width}")
        if len(latents_mean) != z_dim or len(latents_std) != z_dim:
            raise ValueError(f"latents_mean and latents_std need z_dim = {z_dim} values each")
        patch = 3 * FRAMES_PER_LATENT * size * size
        self.register_buffer("mean_image", torch.zeros(3, height, width))
        self.analysis = nn.Conv2d(patch, z_dim, 1)
        self.synthesis = nn.Conv2d(z_dim, patch, 1)
        self.encoder = _refiner(patch, hidden, num_blocks, z_dim)
        self.decoder = _refiner(z_dim, hidden, num_blocks, patch)

    def encode(self, x: Float[Tensor, "b 3 t H W"], return_dict: bool = True) -> AutoencoderKLOutput:
        """A point posterior over the latents: `.latent_dist.mode()` is [b z f h w]."""
        self._check_size(x)
        batch, frames = x.shape[0], num_latent_frames(x.shape[2])
        patches = self._to_patches(x)
        latents = self.analysis(patches) + self.encoder(patches)
        latents = rearrange(latents, "(b f) z h w -> b z f h w", b=batch, f=frames)
        posterior = DiagonalGaussianDistribution(
            torch.cat([latents, torch.full_like(latents, MIN_LOGVAR)], 1), deterministic=True
        )
        return AutoencoderKLOutput(latent_dist=posterior)

    def decode(self, z: Float[Tensor, "b z f h w"], return_dict: bool = True) -> DecoderOutput:
        """`.sample` is [b 3 t H W] in [-1, 1]."""
        batch = z.shape[0]
        latents = rearrange(z, "b z f h w -> (b f) z h w")
        patches = self.synthesis(latents) + self.decoder(latents)
        return DecoderOutput(sample=self._from_patches(patches, batch).clamp(-1, 1))

    @torch.no_grad()
    def initialize_from(self, x: Float[Tensor, "b 3 t H W"]) -> None:
        """Set the mean image and the linear path from frames, by PCA of their patches (closed form)."""
        self._check_size(x)
        self.mean_image.copy_(x.mean((0, 2)))
        patches = rearrange(self._to_patches(x), "n p h w -> (n h w) p").double()
        mean = patches.mean(0)
        covariance = torch.cov((patches - mean).T)
        basis = torch.linalg.eigh(covariance).eigenvectors[:, -self.config["z_dim"] :].flip(1)
        self.analysis.load_state_dict({"weight": basis.T[:, :, None, None], "bias": -(mean @ basis)})
        self.synthesis.load_state_dict({"weight": basis[:, :, None, None], "bias": mean})

    @torch.no_grad()
    def set_latent_statistics(self, x: Float[Tensor, "b 3 t H W"]) -> None:
        """Record the latents' mean, and a scale halfway between whitening and one scale for all channels."""
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

    def _to_patches(self, x: Float[Tensor, "b 3 t H W"]) -> Float[Tensor, "n p h w"]:
        centered = x - self.mean_image[:, None]
        first = repeat(centered[:, :, :1], "b c 1 H W -> b c r H W", r=FRAMES_PER_LATENT)
        groups = torch.cat([first, centered[:, :, 1:]], 2)
        size = self.config["scale_factor_spatial"]
        return rearrange(
            groups,
            "b c (f r) (h p) (w q) -> (b f) (r c p q) h w",
            r=FRAMES_PER_LATENT,
            p=size,
            q=size,
        )

    def _from_patches(self, patches: Float[Tensor, "n p h w"], batch: int) -> Float[Tensor, "b 3 t H W"]:
        size = self.config["scale_factor_spatial"]
        groups = rearrange(
            patches,
            "(b f) (r c p q) h w -> b c f r (h p) (w q)",
            b=batch,
            r=FRAMES_PER_LATENT,
            p=size,
            q=size,
        )
        # Latent frame 0 stands for one frame: its four answers are averaged.
        first = groups[:, :, 0].mean(2, keepdim=True)
        rest = rearrange(groups[:, :, 1:], "b c f r H W -> b c (f r) H W")
        return torch.cat([first, rest], 2) + self.mean_image[:, None]


def _refiner(inputs: int, hidden: int, num_blocks: int, outputs: int) -> nn.Sequential:
    last = nn.Conv2d(hidden, outputs, 1)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    blocks = [ResidualBlock(hidden) for _ in range(num_blocks)]
    return nn.Sequential(nn.Conv2d(inputs, hidden, 3, padding=1), *blocks, nn.SiLU(), last)
