import numpy as np
import pytest

from worldmodel.diagnostics import mcc


def test_signed_permutation_and_affine_maps_score_one() -> None:
    z = np.random.default_rng(0).normal(size=(500, 4))
    x = z[:, [2, 0, 3, 1]] * [-3.0, 0.1, 2.0, -1.0] + 5
    result = mcc(z, x)
    assert result.value == pytest.approx(1.0)
    assert result.assignment.tolist() == [1, 3, 0, 2]
    assert mcc(z, x, matching_share=0.5).num_samples == 250


@pytest.mark.parametrize("degrees", [0, 20, 45, 70])
def test_rotation_scores_the_larger_of_cosine_and_sine(degrees: float) -> None:
    z = np.random.default_rng(0).normal(size=(100_000, 2))
    angle = np.deg2rad(degrees)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    result = mcc(z, z @ rotation.T)
    assert result.value == pytest.approx(max(abs(np.cos(angle)), abs(np.sin(angle))), abs=5e-3)


def test_cubes_of_gaussians() -> None:
    z = np.random.default_rng(0).normal(size=(50_000, 3))
    assert mcc(z, z**3).value == pytest.approx(3 / np.sqrt(15), abs=0.02)
    assert mcc(z, z**3, kind="spearman").value == pytest.approx(1.0)


def test_unrelated_latents_stay_near_zero() -> None:
    rng = np.random.default_rng(0)
    assert 0 < mcc(rng.normal(size=(10_000, 5)), rng.normal(size=(10_000, 5))).value < 0.05


def test_matching_out_of_sample_takes_the_luck_away() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(15, 2, 100, 5))
    lucky = [mcc(z[50:], x[50:]).value for z, x in pairs]
    honest = [mcc(z, x, matching_share=0.5).value for z, x in pairs]  # scored on the same 50 samples
    assert np.mean(honest) < 0.8 * np.mean(lucky)


def test_different_row_counts_are_refused() -> None:
    with pytest.raises((ValueError, TypeError)):
        mcc(np.zeros((5, 2)), np.zeros((6, 2)))
