import numpy as np
import pytest

from worldmodel.diagnostics import infomec
from worldmodel.diagnostics.scores.infomec import share_of_largest

COUNTS = {"num_train": 1000, "num_test": 600}


@pytest.fixture(scope="module")
def factors() -> np.ndarray:
    """Random factor values, 4 x 3 x 5 x 4."""
    return np.random.default_rng(1).integers(0, (4, 3, 5, 4), (2000, 4))


def test_share_of_largest_closed_forms() -> None:
    table = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [2.0, 2.0, 0.0]])
    np.testing.assert_allclose(share_of_largest(table, axis=1), [1.0, 0.0, 0.0, 0.25], atol=1e-12)


def test_factors_themselves_are_modular_explicit_and_compact(factors: np.ndarray) -> None:
    result = infomec(factors, factors, discrete_codes=True, **COUNTS)
    assert min(result.modularity, result.compactness) > 0.98
    assert result.explicitness > 0.8
    assert result.num_active == 4


def test_each_score_sees_its_own_defect(factors: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    clean = factors + 0.05 * rng.normal(size=factors.shape)
    duplicated = np.concatenate([clean, clean], axis=1)
    mixed = clean @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    noise = rng.normal(size=factors.shape)
    best = infomec(clean, factors, **COUNTS)
    twice, turned, none = (infomec(codes, factors, **COUNTS) for codes in (duplicated, mixed, noise))
    assert twice.modularity == pytest.approx(best.modularity, abs=0.05)
    assert twice.compactness < best.compactness - 0.2
    assert turned.modularity < best.modularity - 0.3
    assert turned.explicitness > 0.6
    assert none.explicitness < 0.1


def test_unused_codes_are_pruned_and_all_constant_is_zero(factors: np.ndarray) -> None:
    dead = np.concatenate([factors, np.full((2000, 2), 0.5)], axis=1)
    assert infomec(dead, factors, discrete_codes=True, **COUNTS).num_active == 4
    assert infomec(np.ones((2000, 3)), factors, **COUNTS).modularity == 0.0


def test_a_small_table_is_split_and_said_so(small_grid: np.ndarray) -> None:
    with pytest.warns(UserWarning, match="num_train=160 is too few"):
        result = infomec(small_grid, small_grid, discrete_codes=True)
    assert result.num_samples == 160


def test_rows_are_not_their_own_neighbors(factors: np.ndarray) -> None:
    # With repeated rows, the nearest-neighbor estimate would find that noise knows every factor.
    noise = np.random.default_rng(0).normal(size=factors.shape)
    assert infomec(noise, factors, **COUNTS).information.max() < 0.1
