import numpy as np
import pytest

from worldmodel.diagnostics.scores.factor_sampling import (
    check_counts,
    factor_table,
    fixed_factor_pairs,
    fixed_factor_votes,
    sample_points,
    varied_factor_votes,
)


def test_a_shuffled_grid_is_recognized_and_keeps_rows_together(small_grid: np.ndarray) -> None:
    order = np.random.default_rng(0).permutation(len(small_grid))
    # Values with gaps are recoded; the codes carry the original row number.
    table = factor_table(order[:, None].astype(np.float64), 10 * small_grid[order] - 7)
    assert table.is_grid
    assert table.sizes == (4, 3, 5, 4)
    np.testing.assert_array_equal(table.codes[:, 0], np.arange(240))
    np.testing.assert_array_equal(table.factors, small_grid)
    np.testing.assert_array_equal(table.rows(list(small_grid.T)), np.arange(240))


@pytest.mark.parametrize("rows", [np.arange(239), np.repeat(np.arange(24), 10)])
def test_missing_or_repeated_combinations_are_no_grid(small_grid: np.ndarray, rows: np.ndarray) -> None:
    assert not factor_table(np.zeros((len(rows), 1)), small_grid[rows]).is_grid


@pytest.mark.parametrize("num_rows", [240, 200])
def test_votes_share_exactly_the_named_factor(small_grid: np.ndarray, num_rows: int) -> None:
    table = factor_table(np.zeros((num_rows, 1)), small_grid[:num_rows])
    seen = 0
    for votes in fixed_factor_votes(table, 700, 8, np.random.RandomState(0)):
        values = table.factors[votes.rows]  # [group, votes, K]
        is_shared = (values == values[:1]).all(0)
        assert is_shared[np.arange(len(votes.factor)), votes.factor].all()
        assert is_shared.mean() < 0.35
        seen += len(votes.factor)
    assert seen == 700


@pytest.mark.parametrize("num_rows", [240, 200])
def test_pairs_share_exactly_the_named_factor(small_grid: np.ndarray, num_rows: int) -> None:
    table = factor_table(np.zeros((num_rows, 1)), small_grid[:num_rows])
    for pairs in fixed_factor_pairs(table, 50, 8, np.random.RandomState(0)):
        is_shared = table.factors[pairs.first] == table.factors[pairs.second]
        assert is_shared[np.arange(50), :, pairs.factor].all()
        assert is_shared.mean() < 0.6


def test_varied_votes_differ_in_the_named_factor_only(small_grid: np.ndarray) -> None:
    table = factor_table(np.zeros((240, 1)), small_grid)
    (votes,) = varied_factor_votes(table, 50, 16, np.random.RandomState(0))
    values = table.factors[votes.rows]
    varies = (values != values[:1]).any(0)
    assert (varies.sum(1) <= 1).all()
    assert varies[np.arange(50), votes.factor].mean() > 0.9
    with pytest.raises(ValueError, match="full grid"):
        next(
            varied_factor_votes(
                factor_table(np.zeros((9, 1)), small_grid[:9]), 5, 4, np.random.RandomState(0)
            )
        )


def test_points_keep_codes_beside_their_factors(small_grid: np.ndarray) -> None:
    for rows in (np.arange(240), np.arange(100)):
        codes, factors = sample_points(
            factor_table(small_grid[rows], small_grid[rows]), 300, np.random.RandomState(0)
        )
        np.testing.assert_array_equal(codes, factors)


def test_bad_input_is_refused_with_what_came() -> None:
    factors = np.zeros((4, 2), dtype=np.int64)
    with pytest.raises(ValueError, match="2 values that are not finite"):
        factor_table(np.array([[np.nan], [1.0], [np.inf], [0.0]]), factors)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        check_counts(num_train=1)
    with pytest.warns(UserWarning, match="num_train=20 is too few"):
        check_counts(num_train=20)
