import pytest
import torch
from torch import nn

from worldmodel.md_vae.stacked_linear import StackedLinear


def streams(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_each_model_is_its_own_linear_layer() -> None:
    stacked = StackedLinear(4, 3, streams(0, 1, 2))
    rows = torch.randn(3, 5, 4)
    out = stacked(rows)
    for index in range(3):
        alone = nn.Linear(4, 3)
        alone.weight.data, alone.bias.data = stacked.weight[index].T.clone(), stacked.bias[index, 0].clone()
        torch.testing.assert_close(out[index], alone(rows[index]))


def test_initial_weights_depend_on_their_own_stream_and_have_the_usual_range() -> None:
    together, alone = StackedLinear(100, 50, streams(7, 8)), StackedLinear(100, 50, streams(8))
    assert together.weight[1].equal(alone.weight[0])
    assert not together.weight[0].equal(together.weight[1])
    assert together.weight.abs().max().item() <= 0.1
    assert together.weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)


def test_the_sum_of_losses_gives_each_model_its_own_gradient() -> None:
    stacked = StackedLinear(4, 3, streams(0, 1))
    stacked(torch.ones(2, 5, 4))[0].sum().backward()
    assert stacked.weight.grad is not None
    assert stacked.weight.grad[0].abs().min() > 0
    assert stacked.weight.grad[1].abs().max() == 0
