import pytest
import torch

from tests.support.tiny_mddiff import TINY, tiny_mddiff
from worldmodel.mddiff.models.unet import ConceptUNet, UNetConfig


def res_block(inputs: int, outputs: int, time: int = 256) -> int:
    """Two norms, two 3x3 convolutions, scale and shift from time, a 1x1 shortcut where widths differ."""
    count = 2 * inputs + 9 * inputs * outputs + outputs + (time + 1) * 2 * outputs
    count += 2 * outputs + 9 * outputs * outputs + outputs
    return count + (0 if inputs == outputs else inputs * outputs + outputs)


def transformer(width: int, token: int = 16) -> int:
    """Norm, 1x1 in and out, self-attention, cross-attention, GEGLU feed-forward, three layer norms."""
    projections = 2 * width + 2 * (width * width + width)
    self_attention = 4 * width * width + width
    cross_attention = 2 * width * width + 2 * token * width + width
    feed_forward = 8 * width * width + 8 * width + 4 * width * width + width
    return projections + self_attention + cross_attention + feed_forward + 6 * width


def published_count() -> int:
    """Model width 64, multipliers 1 2 4 4, 2 res blocks, attention at factors 1 2 4, blocks that resample."""
    widths, skips, width = (64, 128, 256, 256), [64], 64
    count = (64 * 256 + 256) + (256 * 256 + 256) + (9 * 3 * 64 + 64)
    for level, out in enumerate(widths):
        for _ in range(2):
            count += res_block(width, out) + (transformer(out) if level < 3 else 0)
            width = out
            skips.append(width)
        if level < 3:
            count += res_block(width, width)
            skips.append(width)
    count += 2 * res_block(width, width) + transformer(width)
    for level, out in reversed(list(enumerate(widths))):
        for number in range(3):
            count += res_block(width + skips.pop(), out) + (transformer(out) if level < 3 else 0)
            width = out
            if number == 2 and level:
                count += res_block(width, width)
    return count + 2 * 64 + 9 * 64 * 3 + 3


def test_the_default_has_the_published_size_and_starts_at_zero() -> None:
    unet = ConceptUNet(UNetConfig(), latent_channels=3, token_dim=16)
    assert sum(p.numel() for p in unet.parameters()) == published_count() == 37_469_635
    attended = [module for name, module in unet.named_modules() if name.endswith("attn2")]
    assert len(attended) == 6 + 1 + 9
    assert {layer.heads for layer in attended} == {8}
    assert {layer.to_k.in_features for layer in attended} == {16}
    with torch.no_grad():
        noise = unet(torch.randn(1, 3, 16, 16), torch.tensor([7]), torch.randn(1, 20, 16))
    assert noise.shape == (1, 3, 16, 16)
    assert not noise.any()


def test_time_and_each_token_change_the_prediction_but_their_order_does_not() -> None:
    unet = tiny_mddiff().unet.eval()
    noisy, tokens = torch.randn(1, 3, 4, 4), torch.randn(1, 5, 4)
    with torch.no_grad():
        base = unet(noisy, torch.tensor([3]), tokens)
        assert not torch.allclose(unet(noisy, torch.tensor([500]), tokens), base, atol=1e-5)
        for number in range(5):
            changed = tokens.clone()
            changed[:, number] += 3
            assert not torch.allclose(unet(noisy, torch.tensor([3]), changed), base, atol=1e-6)
        torch.testing.assert_close(unet(noisy, torch.tensor([3]), tokens.flip(1)), base)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of norm_groups 32"):
        UNetConfig(channels=48)
    with pytest.raises(ValueError, match="attention_factors"):
        UNetConfig(multipliers=(1, 2), attention_factors=(4,))
    assert TINY.unet.attention_factors == (1,)
