from dataclasses import replace

import pytest
from torch import nn

from tests.support.tiny_mddiff import TINY
from worldmodel.mcl.config import MclConfig
from worldmodel.mcl.critics import ImageCritic
from worldmodel.mddiff.models.config import ContrastConfig, MDDiffConfig
from worldmodel.mddiff.models.contrast import FlatCritic, build_image_contrast


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_critic_and_heads_have_the_sizes_of_the_released_code() -> None:
    published = ContrastConfig(mcl=MclConfig(mode="exact"))
    contrast = build_image_contrast(MDDiffConfig(contrast=published))
    assert contrast is not None
    assert isinstance(contrast.critic, ImageCritic)
    # Where the released critic pads 128 picture features with zeros to 256, ours has a linear layer.
    assert count(contrast.critic) == 336_833 + (128 + 1) * 256
    assert count(contrast.gradient_head) == 114_944
    assert count(contrast.condition_head) == 19_200


def test_the_three_layer_critic_sees_everything_flat() -> None:
    contrast = build_image_contrast(
        replace(TINY, contrast=ContrastConfig(critic="mlp", mcl=MclConfig(mode="exact")))
    )
    assert contrast is not None
    assert isinstance(contrast.critic, FlatCritic)
    inputs = 3 * 4 * 4 + 3 * 16 * 16 + 5
    assert count(contrast.critic) == (inputs + 1) * 256 + 257 * 256 + 257


@pytest.mark.parametrize(
    ("mcl", "trained"),
    [
        (MclConfig(mode="exact"), {"critic", "gradient_head", "condition_head"}),
        (MclConfig(mode="detached"), {"gradient_head", "condition_head"}),
        (MclConfig(mode="jvp"), {"gradient_head", "condition_head"}),
        (MclConfig(mode="exact", variant="fisher"), {"critic"}),
    ],
)
def test_what_a_mode_cannot_train_is_frozen(mcl: MclConfig, trained: set[str]) -> None:
    contrast = build_image_contrast(replace(TINY, contrast=ContrastConfig(mcl=mcl)))
    assert contrast is not None
    assert {name.split(".")[0] for name, p in contrast.named_parameters() if p.requires_grad} == trained
    assert build_image_contrast(TINY) is None
