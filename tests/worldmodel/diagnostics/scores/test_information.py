import numpy as np
from sklearn.metrics import mutual_info_score

from worldmodel.diagnostics.scores.information import entropies, equal_width_bins, mutual_information


def test_mutual_information_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 7, (500, 3))
    second = np.stack([first[:, 0] // 2, rng.integers(0, 4, 500)], axis=1) * 3 - 1
    expected = [[mutual_info_score(a, b) for b in second.T] for a in first.T]
    np.testing.assert_allclose(mutual_information(first, second), expected, atol=1e-12)
    np.testing.assert_allclose(entropies(second)[0], mutual_info_score(second[:, 0], second[:, 0]))


def test_constant_columns_hold_no_information() -> None:
    values = np.arange(10)[:, None] % 3
    assert mutual_information(np.ones((10, 1)), values).tolist() == [[0.0]]
    assert entropies(np.ones((10, 1))).tolist() == [0.0]


def test_bins_have_equal_width_and_hold_the_largest_value() -> None:
    bins = equal_width_bins(np.array([[0.0], [0.9], [1.0], [4.0]]), num_bins=4)
    assert bins[:, 0].tolist() == [1, 1, 2, 4]
