import pytest
import torch

from tests.support.tiny_wan import tiny_wan
from worldmodel.models.backbone import (
    LoraConfig,
    add_lora,
    build_wan,
    load_lora_state,
    lora_state,
    merge_lora,
    without_lora,
)


def call(backbone) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    noisy, text = torch.randn(2, 16, 3, 8, 8, generator=generator), torch.ones(2, 3, 32)
    with torch.no_grad():
        return backbone(noisy, torch.tensor([300.0, 700.0]), text, return_dict=False)[0]


def adapted(rank: int = 4):
    backbone = build_wan(tiny_wan())
    add_lora(backbone, LoraConfig(rank=rank, alpha=8))
    return backbone


def train_a_little(backbone) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in backbone.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1, generator=generator)


def test_new_adapters_change_nothing_and_sit_on_ten_layers_per_block():
    backbone = adapted()
    assert torch.equal(call(backbone), call(build_wan(tiny_wan())))
    trained = [name for name, p in backbone.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 10 * 2
    assert all(".lora_" in name for name in trained)
    assert not any("time_" in name or "text_" in name for name in trained)


def test_merged_equals_unmerged_and_is_plain_again():
    backbone = adapted()
    train_a_little(backbone)
    before = call(backbone)
    assert (before - call(build_wan(tiny_wan()))).abs().max() > 0.01
    merge_lora(backbone)
    assert torch.allclose(call(backbone), before, atol=2e-6)
    assert backbone.state_dict().keys() == build_wan(tiny_wan()).state_dict().keys()


def test_adapters_and_base_are_told_apart_and_come_back():
    backbone = adapted()
    train_a_little(backbone)
    plain = build_wan(tiny_wan()).state_dict()
    base = without_lora(backbone)
    assert base.keys() == plain.keys()
    assert all(torch.equal(base[name], plain[name]) for name in plain)
    again = adapted()
    load_lora_state(again, lora_state(backbone))
    assert torch.equal(call(again), call(backbone))


def test_adapters_of_another_backbone_are_refused():
    state = lora_state(adapted())
    state.pop(next(iter(state)))
    with pytest.raises(ValueError, match="do not fit the backbone"):
        load_lora_state(adapted(), state)
    with pytest.raises(ValueError, match="do not fit the backbone"):
        load_lora_state(adapted(rank=2), lora_state(adapted(rank=4)))
    with pytest.raises(ValueError, match=r"rank must lie in 0 \.\. 4096, got -1"):
        LoraConfig(rank=-1)
