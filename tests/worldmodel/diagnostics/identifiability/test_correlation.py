import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from worldmodel.diagnostics.identifiability.correlation import cross_correlation, matched_correlation


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_signed_permutations_and_affine_maps_score_one() -> None:
    z = gaussian(3, 1000, 4)
    moved = z[..., [2, 0, 3, 1]] * torch.tensor([-3.0, 0.1, 5.0, -1.0]) + torch.tensor([1.0, -2.0, 0.0, 9.0])
    result = matched_correlation(z, moved)
    np.testing.assert_allclose(result.mean, 1, atol=1e-12)
    assert result.assignment.tolist() == [[1, 3, 0, 2]] * 3


@pytest.mark.parametrize("degrees", [10, 30, 45, 70])
def test_a_plane_rotation_scores_the_larger_of_cosine_and_sine(degrees: float) -> None:
    z = gaussian(200_000, 2, seed=1)
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
    expected = max(abs(math.cos(angle)), abs(math.sin(angle)))
    assert float(matched_correlation(z, z @ turn.T).mean) == pytest.approx(expected, abs=5e-3)


def test_cubes_have_the_known_pearson_and_perfect_rank_correlation() -> None:
    z = gaussian(500_000, 1, seed=2)
    assert float(matched_correlation(z, z**3).mean) == pytest.approx(3 / math.sqrt(15), abs=0.01)
    assert float(matched_correlation(z, z**3, kind="spearman").mean) == pytest.approx(1, abs=1e-9)


def test_ties_share_their_ranks_as_in_scipy() -> None:
    first, second = gaussian(300, 2, seed=3).round(), gaussian(300, 2, seed=4).round()
    ours = cross_correlation(first, second, "spearman").numpy()
    theirs = spearmanr(first.numpy(), second.numpy()).statistic[:2, 2:]
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_independent_noise_leaves_a_small_positive_floor() -> None:
    score = float(matched_correlation(gaussian(10_000, 5), gaussian(10_000, 5, seed=9)).mean)
    assert 0 < score < 0.05


def test_matching_on_other_samples_takes_the_luck_out() -> None:
    z, noise = gaussian(200, 60, 8), gaussian(200, 60, 8, seed=5)
    in_sample = matched_correlation(z, noise).mean.mean()
    held_out = matched_correlation(z, noise, matching_share=0.5).mean.mean()
    unmatched = cross_correlation(z[:, 30:], noise[:, 30:]).abs().mean().item()
    assert in_sample > held_out + 0.05
    assert held_out == pytest.approx(unmatched, abs=0.01)


def test_constant_latents_correlate_with_nothing() -> None:
    z = gaussian(100, 2)
    dead = torch.stack([z[:, 0], torch.full((100,), 0.3, dtype=torch.float64)], dim=1)
    result = matched_correlation(z, dead)
    assert result.per_factor.tolist() == pytest.approx([1.0, 0.0])


def test_fewer_estimates_than_factors_leave_factors_alone() -> None:
    z = gaussian(100, 3)
    result = matched_correlation(z, z[:, [2]])
    assert result.assignment.tolist() == [-1, -1, 0]
    assert float(result.mean) == pytest.approx(1 / 3)


def test_impossible_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="matching_share"):
        matched_correlation(gaussian(10, 2), gaussian(10, 2), matching_share=1.0)
