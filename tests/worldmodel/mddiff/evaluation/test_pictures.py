import numpy as np
import pytest
import torch

from tests.support.concept_stand_ins import StripeReader, striped
from worldmodel.mddiff.data.types import grid_index
from worldmodel.mddiff.evaluation.pictures import (
    attention_overlays,
    code_meanings,
    factor_swaps,
    traversals,
)


def test_codes_are_named_after_what_they_tell() -> None:
    meanings = code_meanings(StripeReader(), striped())
    assert sorted(meanings.shown.tolist()) == [0, 1, 2]
    assert [meanings.codes_of(factor).tolist() for factor in range(3)] == [[0], [1], [2]]
    assert meanings.name(1) == "1: b 1.00"


def test_dead_codes_are_not_shown() -> None:
    class WithDead(StripeReader):
        def encode(self, images: torch.Tensor) -> torch.Tensor:
            return torch.cat([super().encode(images), torch.zeros(len(images), 1)], 1)

    assert 3 not in code_meanings(WithDead(), striped()).shown


def test_a_collapsed_model_has_no_traversals() -> None:
    class Collapsed(StripeReader):
        def encode(self, images: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(images), 3)

    assert traversals(Collapsed(), code_meanings(Collapsed(), striped()), torch.zeros(3)) == {}


def test_a_traversal_of_the_ideal_model_moves_one_stripe() -> None:
    model, data = StripeReader(), striped()
    start = model.encode(data.images(np.array([0])))[0]
    rows = traversals(model, code_meanings(model, data), start, columns=4)
    assert set(rows) == {"0: a 1.00", "1: b 1.00", "2: c 1.00"}
    for stripe, name in enumerate(sorted(rows)):
        moved = rows[name].std(0)[0, ::6, 0] > 1e-6
        assert moved.tolist() == [stripe == other for other in range(3)]
        assert (rows[name][:, 0, 6 * stripe, 0].diff() > 0).all()


def test_a_swap_takes_one_factor_from_the_target() -> None:
    model, data = StripeReader(), striped()
    source, target = np.array([[0, 0, 0], [3, 1, 5]]), np.array([[3, 4, 5], [0, 4, 2]])
    images = [data.images(grid_index(data, values)) for values in (source, target)]
    columns = factor_swaps(model, code_meanings(model, data), *images)
    assert list(columns) == ["source", "target", "rebuilt", "a", "b", "c"]
    expected = source.copy()
    expected[:, 1] = target[:, 1]
    right = data.images(grid_index(data, expected)).float() / 255
    assert torch.allclose(columns["b"], right, atol=1e-6)
    assert torch.allclose(columns["rebuilt"], columns["source"], atol=1e-6)


def test_attention_is_shown_on_one_scale() -> None:
    attention = torch.ones(1, 2, 2, 2)
    attention[0, 1, 0, 0] = 3.0
    overlays, low, high = attention_overlays(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), attention)
    assert (low, high, overlays.shape) == (1.0, 3.0, (1, 2, 3, 8, 8))
    even, peaked = overlays[0]
    assert torch.allclose(
        even, even[:, :1, :1].expand_as(even)
    )  # an even map is not stretched to full contrast
    assert peaked.mean(0)[0, 0] > even.mean(0)[0, 0] + 0.3
    assert torch.allclose(peaked[:, -1, -1], even[:, -1, -1])


@pytest.mark.filterwarnings("error")
def test_few_pictures_do_not_break_the_naming() -> None:
    assert code_meanings(StripeReader(), striped((2, 2, 2))).share.shape == (3, 3)
