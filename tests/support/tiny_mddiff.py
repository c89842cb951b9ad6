"""The smallest concept model and pictures for it, for tests."""

from dataclasses import replace

import torch
from torch import Tensor

from worldmodel.mddiff.models.config import ContrastConfig, MDDiffConfig
from worldmodel.mddiff.models.first_stage import DecoderConditionConfig, VqConfig
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.models.unet import UNetConfig

TINY = MDDiffConfig(
    image_size=16,
    num_concepts=5,
    encoder_width=8,
    token_dim=4,
    vq=VqConfig(
        channels=8,
        multipliers=(1, 1, 2),
        num_res_blocks=1,
        num_codes=16,
        mid_attention=True,
        norm_groups=4,
    ),
    unet=UNetConfig(
        channels=8,
        multipliers=(1, 2),
        num_res_blocks=1,
        attention_factors=(1,),
        num_heads=2,
        norm_groups=4,
    ),
)


def tiny_mddiff(
    decoder: DecoderConditionConfig | None = None, contrast: ContrastConfig | None = None, seed: int = 0
) -> MDDiff:
    """Random weights everywhere, also where training would start from zeros."""
    torch.manual_seed(seed)
    model = MDDiff(replace(TINY, decoder=decoder or DecoderConditionConfig(), contrast=contrast))
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def some_images(count: int = 6, size: int = 16, seed: int = 0) -> Tensor:
    """Blocks of random colors, uint8."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randint(256, (count, 3, 4, 4), generator=rng, dtype=torch.uint8)
    return coarse.repeat_interleave(size // 4, 2).repeat_interleave(size // 4, 3)
