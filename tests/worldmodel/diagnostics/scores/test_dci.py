import numpy as np
import pytest

from worldmodel.diagnostics import dci
from worldmodel.diagnostics.scores.dci import completeness, disentanglement

TWINS = 1 - np.log(2) / np.log(10)  # importance split evenly between two of ten
EYE = 5 * np.eye(5)


@pytest.mark.parametrize(
    ("importance", "d", "c"),
    [
        (EYE, 1.0, 1.0),
        (np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), 1.0, 1.0),
        (np.zeros((10, 10)), 0.0, 0.0),
        (np.vstack([EYE, EYE]), 1.0, TWINS),
        (EYE[:2], 1.0, 1.0),
        (np.hstack([EYE, EYE]), TWINS, 1.0),
    ],
)
def test_closed_forms(importance: np.ndarray, d: float, c: float) -> None:
    assert disentanglement(importance) == pytest.approx(d, abs=1e-6)
    assert completeness(importance) == pytest.approx(c, abs=1e-6)


def test_weighted_and_plain_means_differ_by_the_dead_code() -> None:
    importance = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert disentanglement(importance) == pytest.approx(1.0)
    assert disentanglement(importance, weighted=False) == pytest.approx(2 / 3)


def test_bounds_on_known_codes_and_any_number_of_jobs() -> None:
    factors = np.stack(np.unravel_index(np.arange(12), (2, 3, 2)), axis=1)
    counts = {"num_train": 500, "num_test": 500}
    identity = dci(factors, factors, jobs=1, **counts)
    assert identity.disentanglement > 0.99
    assert identity.completeness > 0.99
    assert identity.informativeness == 1.0
    assert not identity.comparable
    noisy = np.hstack([factors, factors]) + np.random.default_rng(0).normal(size=(12, 6))
    twice, again = (dci(noisy, factors, jobs=jobs, **counts) for jobs in (1, 3))
    np.testing.assert_array_equal(twice.importance, again.importance)
    assert twice.interval == again.interval
    assert twice.disentanglement < 0.9


def dummy_factors(num_factors: int, num_values: int, num_points: int) -> np.ndarray:
    """The dummy data of the reference's own tests: independent uniform factors, observed as they are."""
    return np.random.RandomState(0).randint(1, num_values + 1, (num_points, num_factors))


@pytest.mark.parametrize(
    ("num_factors", "num_values", "num_points"),
    [(5, 3, 500), pytest.param(10, 10, 1000, marks=pytest.mark.slow)],
)
def test_bounds_of_the_reference_on_its_dummy_data(
    num_factors: int, num_values: int, num_points: int
) -> None:
    factors = dummy_factors(num_factors, num_values, 4 * num_points)
    counts = {"num_train": num_points, "num_test": num_points}
    permuted = dci(np.random.default_rng(0).permuted(factors, axis=1), factors, **counts)
    assert permuted.disentanglement <= 0.2
    assert permuted.completeness <= 0.2
    twice = dci(np.hstack([factors, factors]), factors, **counts)
    assert twice.disentanglement >= 0.9
    assert twice.completeness == pytest.approx(TWINS, abs=0.1)


def test_a_factor_with_one_value_needs_no_classifier(small_grid: np.ndarray) -> None:
    factors = np.concatenate([small_grid[:, :2], np.zeros((240, 1), dtype=np.int64)], axis=1)
    result = dci(small_grid, factors, num_train=500, num_test=500)
    assert result.importance[:, 2].tolist() == [0.0] * 4
    assert result.informativeness == 1.0


GOLDEN = {
    "VAE": (0.1352, 0.1148, 0.5300),
    "betaH": (0.2547, 0.2045, 0.6710),
    "betaB": (0.3639, 0.4137, 0.6498),
    "btcvae": (0.3643, 0.3724, 0.7198),
    "factor": (0.2180, 0.2181, 0.5206),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_real_codes_match_the_reference(name: str, vae_codes, grid_factors) -> None:
    result = dci(vae_codes[name], grid_factors, num_train=1000, num_test=1000)
    found = (result.disentanglement, result.completeness, result.informativeness)
    assert found == pytest.approx(GOLDEN[name], abs=0.01)


@pytest.mark.slow
def test_a_rotated_code_is_entangled_for_dci(vae_codes, grid_factors) -> None:
    standardized = (grid_factors - grid_factors.mean(0)) / grid_factors.std(0)
    result = dci(standardized @ vae_codes["rotation_Q"], grid_factors, num_train=1000, num_test=1000)
    found = (result.disentanglement, result.completeness, result.informativeness)
    assert found == pytest.approx((0.1043, 0.1092, 0.5196), abs=0.01)


def test_two_factors_give_no_interval() -> None:
    factors = np.stack(np.unravel_index(np.arange(4), (2, 2)), axis=1)
    assert np.isnan(dci(factors, factors, num_train=500, num_test=500).interval).all()
