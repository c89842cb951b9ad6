"""The denoiser of EncDiff and MDDiff: the U-Net of latent diffusion, attending to concept tokens.

Residual blocks resample (no strided convolutions), the time step enters as scale and shift of the second
norm, and on the levels that attend a transformer layer follows each residual block:

    level        0    1    2    3            multipliers 1 2 4 4
    factor       1    2    4    8            attention_factors 1 2 4; the middle, at the last level, always
    16x16 latent 16   8    4    2

Blocks come from diffusers; UNet2DConditionModel itself combines transformers with strided resampling only.
"""

from dataclasses import dataclass

import torch
from diffusers.models.embeddings import TimestepEmbedding, get_timestep_embedding
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from jaxtyping import Float, Int
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.desk.refiner import zero_convolution


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of the denoiser."""

    channels: int = 64  # channels of level 0; the time embedding has four times as many
    multipliers: tuple[int, ...] = (1, 2, 4, 4)  # channels of each level, in units of `channels`
    num_res_blocks: int = 2  # residual blocks per level on the way down; one more on the way up
    attention_factors: tuple[int, ...] = (1, 2, 4)  # down-sampling factors of the levels that attend
    num_heads: int = 8  # of every attention; a head has channels / num_heads dimensions
    norm_groups: int = 32  # of every group norm

    def __post_init__(self) -> None:
        check_ranges(
            self,
            channels=(1, 4096),
            multipliers=(1, 64),
            num_res_blocks=(1, 64),
            num_heads=(1, 512),
            norm_groups=(1, 4096),
        )
        if not 1 <= len(self.multipliers) <= 10:
            raise ValueError(f"multipliers has 1 to 10 entries, got {len(self.multipliers)}")
        if self.channels % self.norm_groups or self.channels % self.num_heads:
            raise ValueError(
                f"unet channels {self.channels} must be a multiple of norm_groups {self.norm_groups} "
                f"and of num_heads {self.num_heads}"
            )
        possible = {2**level for level in range(len(self.multipliers))}
        if not set(self.attention_factors) <= possible:
            raise ValueError(f"attention_factors are among {possible}, got {self.attention_factors}")


class UNetLayer(nn.Module):
    """A residual block, followed by attention and resampling where the layer has them."""

    def __init__(
        self, resnet: ResnetBlock2D, attention: Transformer2DModel | None, resample: ResnetBlock2D | None
    ) -> None:
        super().__init__()
        self.resnet, self.attention, self.resample = resnet, attention, resample

    def forward(
        self, x: Float[Tensor, "b d h w"], time: Float[Tensor, "b e"], tokens: Float[Tensor, "b k m"]
    ) -> Float[Tensor, "b out h2 w2"]:
        """Features of the next layer."""
        x = self.resnet(x, time)
        if self.attention is not None:
            x = self.attention(x, encoder_hidden_states=tokens, return_dict=False)[0]
        return x if self.resample is None else self.resample(x, time)


class ConceptUNet(nn.Module):
    """Predicts the noise in a latent from its time step and the concept tokens."""

    def __init__(self, config: UNetConfig, latent_channels: int, token_dim: int) -> None:
        super().__init__()
        self.config, self.token_dim = config, token_dim
        width = config.channels
        self.time = TimestepEmbedding(width, 4 * width)
        self.conv_in = nn.Conv2d(latent_channels, width, 3, padding=1)
        self.down, self.middle, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        skips = [width]
        for level, out in enumerate(self._widths()):
            for _ in range(config.num_res_blocks):
                self.down.append(self._layer(width, out, level))
                skips.append(width := out)
            if level < len(config.multipliers) - 1:
                self.down.append(UNetLayer(self._resnet(width, width, down=True), None, None))
                skips.append(width)
        self.middle.append(UNetLayer(self._resnet(width, width), self._attention(width), None))
        self.middle.append(UNetLayer(self._resnet(width, width), None, None))
        for level, out in reversed(list(enumerate(self._widths()))):
            for number in range(config.num_res_blocks + 1):
                is_last = number == config.num_res_blocks
                self.up.append(self._layer(width + skips.pop(), out, level, up=is_last and level > 0))
                width = out
        self.norm_out = nn.GroupNorm(config.norm_groups, width, eps=1e-5)
        self.conv_out = zero_convolution(nn.Conv2d(width, latent_channels, 3, padding=1))

    def forward(
        self, noisy: Float[Tensor, "b c h w"], steps: Int[Tensor, " b"], tokens: Float[Tensor, "b k m"]
    ) -> Float[Tensor, "b c h w"]:
        """Predicted noise; `steps` are 0 (almost clean) to T - 1."""
        time = self.time(
            get_timestep_embedding(
                steps, self.config.channels, flip_sin_to_cos=True, downscale_freq_shift=0
            ).to(noisy.dtype)
        )
        x = self.conv_in(noisy)
        skips = [x]
        for layer in self.down:
            skips.append(x := layer(x, time, tokens))
        for layer in self.middle:
            x = layer(x, time, tokens)
        for layer in self.up:
            x = layer(torch.cat([x, skips.pop()], dim=1), time, tokens)
        out: Tensor = self.conv_out(nn.functional.silu(self.norm_out(x)))
        return out

    def _widths(self) -> list[int]:
        return [self.config.channels * multiplier for multiplier in self.config.multipliers]

    def _layer(self, inputs: int, outputs: int, level: int, up: bool = False) -> UNetLayer:
        attends = 2**level in self.config.attention_factors
        return UNetLayer(
            self._resnet(inputs, outputs),
            self._attention(outputs) if attends else None,
            self._resnet(outputs, outputs, up=True) if up else None,
        )

    def _resnet(self, inputs: int, outputs: int, *, up: bool = False, down: bool = False) -> ResnetBlock2D:
        block = ResnetBlock2D(
            in_channels=inputs,
            out_channels=outputs,
            temb_channels=4 * self.config.channels,
            groups=self.config.norm_groups,
            eps=1e-5,
            time_embedding_norm="scale_shift",
            up=up,
            down=down,
        )
        zero_convolution(block.conv2)
        return block

    def _attention(self, width: int) -> Transformer2DModel:
        layer = Transformer2DModel(
            num_attention_heads=self.config.num_heads,
            attention_head_dim=width // self.config.num_heads,
            in_channels=width,
            norm_num_groups=self.config.norm_groups,
            cross_attention_dim=self.token_dim,
        )
        zero_convolution(layer.proj_out)
        return layer
