import pytest
import torch
from torch import nn

from worldmodel.mddiff.models.encoder import ConceptEncoder, ConceptTokens


def test_the_published_encoder_has_the_published_layers() -> None:
    encoder = ConceptEncoder(64, 20)
    # Four 4x4 convolutions and two residual units of width 128, batch norms, 2048 features to 20 scalars.
    convolutions = (3 * 16 * 128 + 128) + 3 * (128 * 16 * 128 + 128)
    residual_units = 2 * ((9 * 128 * 128 + 128) + (128 * 128 + 128) + 2 * 128)
    expected = convolutions + residual_units + 5 * 2 * 128 + 2048 * 20 + 20
    assert sum(p.numel() for p in encoder.parameters()) == expected == 1_164_052
    order = [type(layer).__name__ for layer in encoder.layers]
    assert order[:7] == ["Sequential", "ReLU", "Sequential", "ReLU", "Sequential", "Sequential", "ReLU"]
    assert encoder.eval()(torch.randn(2, 3, 64, 64)).shape == (2, 20)


def test_batch_statistics_belong_to_training_only() -> None:
    torch.manual_seed(0)
    encoder = ConceptEncoder(16, 3, width=4)
    images = torch.randn(4, 3, 16, 16)
    encoder(images)
    encoder.eval()
    torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]))
    encoder.train()
    assert not torch.allclose(encoder(images)[:2], encoder(images[:2]), atol=1e-3)


def test_a_token_depends_on_its_own_scalar_alone() -> None:
    torch.manual_seed(0)
    tokens = ConceptTokens(4, token_dim=3)
    assert sum(p.numel() for p in ConceptTokens(20, 16).parameters()) == 20 * (128 + 65 * 128 + 129 * 16)
    jacobian = torch.autograd.functional.jacobian(tokens, torch.randn(1, 4))[0, :, :, 0]
    is_own = torch.eye(4, dtype=torch.bool)[:, None].expand(-1, 3, -1)
    assert jacobian[is_own].abs().min() > 0
    assert not jacobian[~is_own].any()
    same = tokens(torch.full((1, 4), 0.3))
    assert not torch.allclose(same[0, 0], same[0, 1])  # each concept has an MLP of its own
    assert isinstance(tokens.layers[1], nn.ELU)


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16, got 40"):
        ConceptEncoder(40, 20)
