import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodel.diagnostics import compositional_contrast, type_d, type_m, type_s
from worldmodel.diagnostics.mechanisms.mechanistic import compositional_contrast_loss

# Two one-dimensional factors; answers derived by hand.
DISJOINT = np.array([[1.0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]).T
TOUCHING = np.array([[1.0, 1, 2, 0, 0], [0, 0, 1, 1, 1]]).T
INCLUDED = np.array([[1.0, 1, 2, 0, 0], [1, 2, 1, 1, 1]]).T


@pytest.mark.parametrize(
    ("jacobian", "contrast", "holds"),
    [(DISJOINT, 0, (1, 1, 1)), (TOUCHING, 2, (0, 1, 1)), (INCLUDED, 5, (0, 0, 0))],
)
def test_the_three_toys(jacobian: np.ndarray, contrast: float, holds: tuple[int, int, int]) -> None:
    assert compositional_contrast(jacobian).raw == contrast
    assert (type_d(jacobian).holds, type_m(jacobian).holds, type_s(jacobian).holds) == holds


def test_scores_of_the_toys() -> None:
    assert type_d(TOUCHING).score == pytest.approx(1 / 5)
    assert type_d(INCLUDED).score == pytest.approx(3 / 5)
    assert type_m(DISJOINT).score == 1
    assert type_m(TOUCHING).score == pytest.approx(2 / 3)
    assert type_s(DISJOINT).score == pytest.approx(2 / 5)
    assert type_s(INCLUDED).score == pytest.approx(-1 / 8)


def test_the_curve_of_type_s_shows_where_a_small_overlap_is_forgotten() -> None:
    # Below 0.005 the second factor touches all outputs of the first, above 0.01 none, and above 0.5 nothing
    # is left of it.
    leaking = np.array([[1.0, 1, 1, 0, 0], [0.005, 0.005, 0.01, 0.5, 0.5]]).T
    found = type_s(leaking, thresholds=(1e-3, 2e-2, 0.7))
    assert found.score == found.curve[0]
    assert found.curve[1] == pytest.approx(type_s(DISJOINT).score)
    assert found.curve[0] < found.curve[1]
    assert np.isnan(found.curve[2])
    assert found.holds_curve[1:].tolist() == [1, 0]
    assert type_s(DISJOINT).thresholds == type_d(DISJOINT).thresholds


@pytest.mark.parametrize("num_blocks", [2, 3, 7])
def test_the_normalized_contrast_has_the_range_it_says(num_blocks: int) -> None:
    even = np.ones((6, num_blocks))
    assert compositional_contrast(even).normalized == pytest.approx((num_blocks - 1) / (2 * num_blocks))
    assert compositional_contrast(np.eye(num_blocks)).normalized == 0


def test_the_normalized_contrast_does_not_mind_scale_and_the_raw_one_does() -> None:
    small, large = compositional_contrast(TOUCHING), compositional_contrast(10 * TOUCHING)
    assert large.normalized == pytest.approx(small.normalized)
    assert large.raw == pytest.approx(100 * small.raw)


def test_blocks_ignore_overlap_inside_a_factor() -> None:
    jacobian = np.array([[1.0, 2, 0], [3, 4, 0], [0, 0, 5], [1, 0, 12]])
    found = compositional_contrast(jacobian, blocks=[(0, 1), (2,)])
    assert found.raw == pytest.approx(12)
    assert type_d(jacobian, blocks=[(0, 1), (2,)]).score == pytest.approx(1 / 4)


def test_the_loss_equals_the_measure_and_its_gradient_is_finite_at_zero() -> None:
    jacobian = torch.from_numpy(np.stack([DISJOINT, TOUCHING, INCLUDED])).requires_grad_()
    loss = compositional_contrast_loss(jacobian, [(0,), (1,)])
    assert loss.item() == pytest.approx(7 / 3)
    loss.backward()
    assert jacobian.grad is not None
    assert jacobian.grad.isfinite().all()
    assert jacobian.grad[2].abs().max() > 0
    normalized = compositional_contrast_loss(jacobian.detach(), [(0,), (1,)], normalized=True)
    assert normalized.item() == pytest.approx(compositional_contrast(jacobian.detach()).normalized)


def test_curves_see_a_leak_below_their_threshold() -> None:
    leaky = DISJOINT.copy()
    leaky[4, 0] = 2e-3
    found = type_d(leaky)
    assert dict(zip(found.thresholds, found.holds_curve, strict=True)) == {
        1e-4: 0,
        3e-4: 0,
        1e-3: 0,
        3e-3: 1,
        1e-2: 1,
        3e-2: 1,
        1e-1: 1,
    }


def test_points_are_counted_and_the_worst_is_named() -> None:
    def generator(z: Tensor) -> Tensor:
        # The first factor reaches the second's output only where it is positive.
        return torch.stack([z[:, 0], z[:, 1] + z[:, 0].relu() ** 2], dim=1)

    found = type_d(generator, torch.tensor([[-1.0, 0], [-2.0, 1], [1.0, 0], [-1.0, 3]]))
    assert found.holds == 0.75
    assert found.num_points == 4
    assert found.worst_point == 2
    assert found.interval[0] < found.score < found.interval[1]
    margin = type_m(generator, torch.tensor([[1.0, 0]]))
    assert margin.score == 0


def test_thresholds_are_shares() -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        type_d(DISJOINT, threshold=1.5)
