"""The first stage of EncDiff and MDDiff: a VQ-VAE whose decoder may be conditioned on u: G(z, u).

Latents are those before quantization; decoding quantizes them. With a condition the decoder is

    once        post_quant_conv gets [z, u]           u broadcast over space, 3 + dim(u) input channels
    each_stage  every upsampling stage gets [h, u]    u broadcast over space

Concatenating a broadcast u and applying a linear map equals adding W u at every position: only W is new.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from diffusers.models.unets.unet_2d_blocks import UNetMidBlock2D
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges


@dataclass(frozen=True)
class VqConfig:
    """Shape of the VQ-VAE; the down-sampling factor is 2 ** (number of multipliers - 1)."""

    channels: int = 32  # of the first level
    multipliers: tuple[int, ...] = (1, 2, 4)  # channels of each level, in units of `channels`
    num_res_blocks: int = 2  # residual blocks per level of the encoder; the decoder has one more
    latent_channels: int = 3  # channels of a latent, and of a code
    num_codes: int = 2048  # size of the codebook
    # The released configuration sets no attention, but its encoder and decoder always include this one.
    mid_attention: bool = True  # one self-attention at the lowest resolution of encoder and decoder
    norm_groups: int = 32  # of every group norm

    def __post_init__(self) -> None:
        check_ranges(
            self,
            channels=(1, 4096),
            multipliers=(1, 64),
            num_res_blocks=(1, 64),
            latent_channels=(1, 4096),
            num_codes=(1, 1 << 20),
            norm_groups=(1, 4096),
        )
        if not 1 <= len(self.multipliers) <= 10:
            raise ValueError(f"multipliers has 1 to 10 entries, got {len(self.multipliers)}")

    @property
    def factor(self) -> int:
        """Pixels per latent and side."""
        return int(2 ** (len(self.multipliers) - 1))


@dataclass(frozen=True)
class DecoderConditionConfig:
    """How u enters the decoder; `none` makes EncDiff, the others MDDiff."""

    where: Literal["none", "each_stage", "once"] = "each_stage"  # the paper's text; its code: once
    what: Literal["scalars", "tokens"] = "scalars"  # u: the concepts (code), or their tokens (paper's text)
    init: Literal["zero", "xavier"] = "zero"  # of the new weights; zero starts as the plain decoder


def build_vq(config: VqConfig) -> VQModel:
    """A VQ-VAE with random weights."""
    num_levels = len(config.multipliers)
    return VQModel(
        down_block_types=("DownEncoderBlock2D",) * num_levels,
        up_block_types=("UpDecoderBlock2D",) * num_levels,
        block_out_channels=tuple(config.channels * multiplier for multiplier in config.multipliers),
        layers_per_block=config.num_res_blocks,
        latent_channels=config.latent_channels,
        num_vq_embeddings=config.num_codes,
        norm_num_groups=config.norm_groups,
        mid_block_add_attention=config.mid_attention,
    )


@torch.no_grad()
def codes_from_latents(vq: VQModel, images: Float[Tensor, "n 3 H W"], rng: torch.Generator) -> None:
    """Initialize the codebook from latents of these images: random codes far from the data are rarely used.

    Each code is drawn with probability proportional to the squared distance from those before (k-means++), so
    rare patches get codes of their own although most patches are plain background.
    """
    latents = vq.encode(images).latents.movedim(1, -1).flatten(0, 2)
    distance = torch.ones(len(latents))
    for code in vq.quantize.embedding.weight:
        code.copy_(latents[torch.multinomial(distance.clamp(min=1e-12), 1, generator=rng)[0]])
        distance = torch.minimum(distance, (latents - code).square().sum(1))


class FirstStage(nn.Module):
    """Images in [-1, 1] to latents and back, G(z, u)."""

    def __init__(self, vq: VQModel, config: DecoderConditionConfig, condition_dim: int) -> None:
        super().__init__()
        self.vq, self.config = vq, config
        widths: list[int] = []
        if config.where == "once":
            widths = [vq.post_quant_conv.out_channels]
        elif config.where == "each_stage":
            blocks: Any = vq.decoder.up_blocks
            widths = [block.resnets[0].in_channels for block in blocks]
        self.condition = nn.ModuleList(nn.Linear(condition_dim, width, bias=False) for width in widths)
        for layer in self.condition:
            assert isinstance(layer, nn.Linear)
            (nn.init.zeros_ if config.init == "zero" else nn.init.xavier_uniform_)(layer.weight)

    def encode(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b c h w"]:
        """Latents before quantization."""
        latents: Tensor = self.vq.encode(images).latents
        return latents

    def quantize(self, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The nearest codes; straight-through gradient."""
        codes: Tensor = self.vq.quantize(latents)[0]
        return codes

    def decode(
        self, codes: Float[Tensor, "b c h w"], condition: Float[Tensor, "b a"]
    ) -> Float[Tensor, "b 3 H W"]:
        """Images from quantized latents."""
        decoder = self.vq.decoder
        shifts = [layer(condition)[:, :, None, None] for layer in self.condition]
        h = self.vq.post_quant_conv(codes)
        if self.config.where == "once":
            h = h + shifts[0]
        h = _middle(decoder.mid_block, decoder.conv_in(h))
        for number, block in enumerate(decoder.up_blocks):
            h = block(h + shifts[number] if self.config.where == "each_stage" else h)
        images: Tensor = decoder.conv_out(decoder.conv_act(decoder.conv_norm_out(h)))
        return images

    def decoder_parameters(self) -> list[nn.Parameter]:
        """Every parameter after the quantizer, including the condition's weights."""
        parts = (self.vq.post_quant_conv, self.vq.decoder, self.condition)
        return [parameter for part in parts for parameter in part.parameters()]


def _middle(block: UNetMidBlock2D, h: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
    """The block's own layers; the forward-mode derivative of a group norm needs contiguous input."""
    h = block.resnets[0](h, None)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        h = h if attention is None else attention(h, temb=None).contiguous()
        h = resnet(h, None)
    return h
