"""Configuration of an EncDiff or MDDiff model; where the paper and its code differ, both are options."""

from dataclasses import dataclass, field
from typing import Literal

from worldmodel.checked import check_ranges
from worldmodel.mcl.config import MclConfig
from worldmodel.mddiff.ddim import NoiseConfig
from worldmodel.mddiff.models.first_stage import DecoderConditionConfig, VqConfig
from worldmodel.mddiff.models.unet import UNetConfig


@dataclass(frozen=True)
class ContrastConfig:
    """How MCL is attached in stage 2."""

    generator: Literal["decoder", "denoiser"] = "decoder"  # G: appendix and code; main text: denoiser
    critic: Literal["conv", "mlp"] = "conv"  # convolutions on x_hat (appendix), or an MLP on [z, x_hat, u]
    layer_norm: bool = True  # normalize the mechanism feature before its head, as the code does
    mcl: MclConfig = field(default_factory=MclConfig)  # mode, variant, temperature, clipping, negatives


@dataclass(frozen=True)
class MDDiffConfig:
    """Sizes of MDDiff: concept encoder, latent diffusion, decoder. `decoder.where: none` makes it EncDiff."""

    image_size: int = 64  # pixels per side
    num_concepts: int = 20  # N, scalars per image
    encoder_width: int = 128  # channels of the image encoder
    token_dim: int = 16  # of each concept's token
    vq: VqConfig = field(default_factory=VqConfig)  # first stage
    unet: UNetConfig = field(default_factory=UNetConfig)  # denoiser
    noise: NoiseConfig = field(default_factory=NoiseConfig)  # forward process
    decoder: DecoderConditionConfig = field(default_factory=DecoderConditionConfig)  # how u enters G
    contrast: ContrastConfig | None = None  # MCL (stage 2); none: off

    def __post_init__(self) -> None:
        check_ranges(
            self,
            image_size=(1, 4096),
            num_concepts=(1, 4096),
            encoder_width=(1, 8192),
            token_dim=(1, 8192),
        )
        smallest = self.vq.factor * 2 ** (len(self.unet.multipliers) - 1)
        if self.image_size % smallest:
            raise ValueError(
                f"image_size must be a multiple of {smallest} for a first stage of factor {self.vq.factor} "
                f"and {len(self.unet.multipliers)} levels of the denoiser, got {self.image_size}"
            )

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a latent."""
        side = self.image_size // self.vq.factor
        return self.vq.latent_channels, side, side

    @property
    def condition_dim(self) -> int:
        """Size of u, the input of decoder, critic and contrast."""
        return self.num_concepts * (self.token_dim if self.decoder.what == "tokens" else 1)
