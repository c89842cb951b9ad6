import pytest
import torch
from torch import nn

from tests.support.tiny_mddiff import TINY, tiny_mddiff
from worldmodel.mddiff.models.first_stage import (
    DecoderConditionConfig,
    FirstStage,
    VqConfig,
    build_vq,
    codes_from_latents,
)


def test_the_published_first_stage_has_factor_4_and_2048_codes() -> None:
    vq = build_vq(VqConfig())
    assert VqConfig().factor == 4
    assert vq.quantize.embedding.weight.shape == (2048, 3)
    assert [block.resnets[0].conv1.out_channels for block in vq.encoder.down_blocks] == [32, 64, 128]
    assert [len(block.resnets) for block in vq.encoder.down_blocks] == [2, 2, 2]
    assert [len(block.resnets) for block in vq.decoder.up_blocks] == [3, 3, 3]
    with torch.no_grad():
        assert vq.encode(torch.zeros(1, 3, 64, 64)).latents.shape == (1, 3, 16, 16)
    each = FirstStage(vq, DecoderConditionConfig(where="each_stage"), 20)
    once = FirstStage(vq, DecoderConditionConfig(where="once"), 20)
    counts = [sum(p.numel() for p in stage.condition.parameters()) for stage in (each, once)]
    assert counts == [20 * (128 + 128 + 64), 60]


@pytest.mark.parametrize("where", ["none", "each_stage", "once"])
def test_a_fresh_condition_leaves_the_decoder_as_it_was(where: str) -> None:
    torch.manual_seed(0)
    vq = build_vq(TINY.vq)
    stage = FirstStage(vq, DecoderConditionConfig(where=where), 5)  # type: ignore[arg-type]
    latents, u = torch.randn(2, 3, 4, 4), torch.randn(2, 5)
    torch.testing.assert_close(stage.decode(stage.quantize(latents), u), vq.decode(latents).sample)
    drawn = FirstStage(vq, DecoderConditionConfig(where=where, init="xavier"), 5)  # type: ignore[arg-type]
    is_changed = not torch.allclose(drawn.decode(latents, u), stage.decode(latents, u))
    assert is_changed == (where != "none")


def test_once_is_the_concatenation_before_the_first_convolution() -> None:
    torch.manual_seed(0)
    vq = build_vq(TINY.vq)
    stage = FirstStage(vq, DecoderConditionConfig(where="once", init="xavier"), 5)
    wide = nn.Conv2d(8, 3, 1)
    old, new = vq.post_quant_conv, stage.condition[0]
    assert isinstance(new, nn.Linear)
    wide.weight.data = torch.cat([old.weight, new.weight[:, :, None, None]], 1).detach()
    wide.bias.data = old.bias.detach()
    codes, u = torch.randn(2, 3, 4, 4), torch.randn(2, 5)
    joined = torch.cat([codes, u[:, :, None, None].expand(-1, -1, 4, 4)], 1)
    torch.testing.assert_close(stage.decode(codes, u), vq.decoder(wide(joined)))


def test_the_quantizer_gives_codes_forward_and_the_identity_backward() -> None:
    stage = tiny_mddiff().first_stage
    latents = torch.randn(1, 3, 4, 4, requires_grad=True)
    codes = stage.quantize(latents)
    distance = torch.cdist(codes.detach().flatten(2)[0].T, stage.vq.quantize.embedding.weight)
    assert distance.min(1).values.max() < 1e-5
    weight = torch.randn_like(codes)
    (codes * weight).sum().backward()
    torch.testing.assert_close(latents.grad, weight)


def test_codes_start_on_latents() -> None:
    torch.manual_seed(0)
    vq = build_vq(TINY.vq)
    images = torch.rand(4, 3, 16, 16) * 2 - 1
    with torch.no_grad():
        latents = vq.encode(images).latents
        before = (vq.quantize(latents)[0] - latents).square().mean()
        codes_from_latents(vq, images, torch.Generator().manual_seed(0))
        after = (vq.quantize(latents)[0] - latents).square().mean()
    assert after < 0.5 * before
