from collections.abc import Sequence
from itertools import permutations

import pytest
import torch
from torch import Tensor

from worldmodel.diagnostics import multi_view_laws, recover_views, simulate_temporal, temporal_recovery

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def joint_law(views: Sequence[Tensor], weights: Tensor) -> Tensor:
    """p(x_0, x_1, ...) of views that are independent given the state."""
    letters = "abcdef"[: len(views)]
    terms = ",".join(f"{letter}z" for letter in letters)
    return torch.einsum(f"z,{terms}->{letters}", weights, *views)


def column_error(found: Tensor, true: Tensor) -> float:
    """Largest difference of two sets of laws, at the best order of the states."""
    orders = permutations(range(true.shape[1]))
    return min((found[:, list(order)] - true).abs().max().item() for order in orders)


def equivalent_for_two(
    views: Sequence[Tensor], weights: Tensor, share: float = 0.1
) -> tuple[list[Tensor], Tensor]:
    """Another model with the same law of the first two views."""
    mix = torch.eye(len(weights), dtype=torch.float64)
    mix[0, 0], mix[1, 0] = 1 - share, share
    # p(x_0, x_1) = A diag(w) B^T = (A M) (M^-1 diag(w) B^T): any M that keeps both sides laws.
    other = torch.linalg.solve(mix, torch.diag(weights) @ views[1].T)
    new_weights = other.sum(1)
    return [views[0] @ mix, (other / new_weights[:, None]).T, *views[2:]], new_weights


@pytest.mark.parametrize("num_views", [3, 4])
def test_three_views_or_more_give_the_laws_back(num_views: int) -> None:
    views = multi_view_laws(num_views, 5, 3, seed=num_views)
    joint = joint_law(views, WEIGHTS)
    seen = joint if num_views == 3 else joint.sum(0)  # any three of four
    found = recover_views(seen, 3)
    assert column_error(found.columns, views[-1]) < 1e-8
    assert sorted(found.weights.tolist()) == pytest.approx(sorted(WEIGHTS.tolist()), abs=1e-8)


def test_two_views_cannot_tell_models_apart_that_a_third_can() -> None:
    views = multi_view_laws(3, 5, 3, seed=0)
    other, weights = equivalent_for_two(views, WEIGHTS)
    assert all((view >= 0).all() for view in other)
    assert torch.allclose(joint_law(other[:2], weights), joint_law(views[:2], WEIGHTS), atol=1e-12)
    assert column_error(other[0], views[0]) > 0.005
    assert not torch.allclose(joint_law(other, weights), joint_law(views, WEIGHTS), atol=1e-4)


def test_samples_of_a_generator_that_is_not_invertible_suffice() -> None:
    views = multi_view_laws(3, 3, 2, seed=3)
    joint = joint_law(views, torch.tensor([0.6, 0.4], dtype=torch.float64))
    counts = torch.zeros(joint.numel(), dtype=torch.float64)
    source = torch.Generator().manual_seed(0)
    draws = torch.multinomial(joint.flatten(), 200_000, replacement=True, generator=source)
    counts.index_add_(0, draws, torch.ones(len(draws), dtype=torch.float64))
    found = recover_views((counts / counts.sum()).view_as(joint), 2)
    assert column_error(found.columns, views[2]) < 0.1
    with pytest.raises(ValueError, match="fewer than 3 states"):
        recover_views(joint, 3)


def test_the_past_stands_in_for_a_condition_that_nobody_observes() -> None:
    found = temporal_recovery(*simulate_temporal(6000, 3, seed=0))
    assert found.past > 0.96
    assert found.shuffled < 0.9
    assert found.static < 0.9
    unmoved = temporal_recovery(*simulate_temporal(6000, 3, seed=0, strength=0.0))
    assert unmoved.past < 0.95  # a past that changes nothing identifies nothing
