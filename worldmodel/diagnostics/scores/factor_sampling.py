"""Draws (factors, codes) as the reference metric library does, from already encoded arrays.

If the rows form a complete grid of factor values, factors are drawn independently and uniformly with
replacement and looked up, in the reference's own order of random numbers, so that scores agree to the last
vote. Other tables (a subset, repeated or missing combinations) are sampled by row instead.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Integer, Num

from worldmodel.diagnostics.scores.bulk_draws import grouped_draws

CODE_BATCH = 16  # the reference draws points sixteen at a time, which fixes the order of its draws
FEW_POINTS = 500  # below this, scores are mostly noise


@dataclass(frozen=True)
class FactorTable:
    """Codes with their factor values; a full grid is sorted by its combinations."""

    codes: Float[np.ndarray, "n d"]
    factors: Integer[np.ndarray, "n num_factors"]  # values recoded to 0 .. size - 1 per factor
    sizes: tuple[int, ...]
    is_grid: bool  # whether each combination of factor values occurs exactly once
    _rows_by_value: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    def rows(self, columns: Sequence[Integer[np.ndarray, "*group"]]) -> Integer[np.ndarray, "*group"]:
        """Rows of the combinations given as one array per factor; only for full grids."""
        assert self.is_grid, "not a full grid"
        row = np.zeros(columns[0].shape, dtype=np.int32)
        for column, size in zip(columns, self.sizes, strict=True):
            row *= size
            row += column
        return row

    def rows_sharing(
        self, factor: int, rows: Integer[np.ndarray, "*group"], rng: np.random.RandomState
    ) -> Integer[np.ndarray, "*group"]:
        """For each row, a random row with the same value of one factor.

        For tables that are not a full grid.
        """
        if factor not in self._rows_by_value:
            order = np.argsort(self.factors[:, factor], kind="stable")
            starts = np.searchsorted(self.factors[order, factor], np.arange(self.sizes[factor] + 1))
            self._rows_by_value[factor] = (order, starts)
        order, starts = self._rows_by_value[factor]
        value = self.factors[rows, factor]
        low, high = starts[value], starts[value + 1]
        return order[low + (rng.random_sample(rows.shape) * (high - low)).astype(np.int64)]


def factor_table(codes: Num[np.ndarray, "n d"], factors: Integer[np.ndarray, "n num_factors"]) -> FactorTable:
    """Check the arrays, recode factor values to 0 .. size - 1 and detect whether they form a full grid."""
    if len(codes) == 0 or len(codes) != len(factors) or 0 in codes.shape + factors.shape:
        raise ValueError(
            f"codes [n, d] and factors [n, K] with one n > 0 are needed, got {codes.shape}, {factors.shape}"
        )
    if not np.isfinite(codes).all():
        raise ValueError(f"codes hold {np.count_nonzero(~np.isfinite(codes))} values that are not finite")
    codes = codes if np.issubdtype(codes.dtype, np.floating) else codes.astype(np.float64)
    columns = [np.unique(column, return_inverse=True) for column in factors.T]
    sizes = tuple(len(values) for values, _ in columns)
    recoded = np.stack([inverse.reshape(-1) for _, inverse in columns], axis=1).astype(np.int64)
    order = _grid_order(recoded, sizes)
    if order is None:
        return FactorTable(codes, recoded, sizes, is_grid=False)
    return FactorTable(codes[order], recoded[order], sizes, is_grid=True)


def _grid_order(factors: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray | None:
    """Row order by combination, the last factor varying fastest; None if this is not a full grid."""
    num_combinations = 1  # a Python integer: np.prod would overflow with many factors
    for size in sizes:
        num_combinations *= size
    if num_combinations != len(factors):
        return None
    order = np.full(num_combinations, -1, dtype=np.int64)
    order[np.ravel_multi_index(tuple(factors.T), sizes)] = np.arange(len(factors))
    return None if (order < 0).any() else order


def check_counts(**counts: int) -> None:
    """Refuse sample counts that cannot work, and warn about those that give noisy scores."""
    for name, count in counts.items():
        if count < 2:
            raise ValueError(f"{name} must be at least 2, got {count}")
        if count < FEW_POINTS:
            warnings.warn(f"{name}={count} is too few for a stable score (use {FEW_POINTS}+)", stacklevel=3)


def sample_points(
    table: FactorTable, num_points: int, rng: np.random.RandomState, batch: int = CODE_BATCH
) -> tuple[Float[np.ndarray, "n d"], Integer[np.ndarray, "n num_factors"]]:
    """Codes and factors of random points, drawn `batch` at a time."""
    if not table.is_grid:
        rows = rng.randint(len(table.codes), size=num_points)
        return table.codes[rows], table.factors[rows]
    batches = [min(batch, num_points - start) for start in range(0, num_points, batch)]
    rows = np.concatenate([table.rows(draw_factors(table.sizes, size, rng)) for size in batches])
    return table.codes[rows], table.factors[rows]


def draw_factors(
    sizes: tuple[int, ...], num_points: int, rng: np.random.RandomState
) -> list[Integer[np.ndarray, " n"]]:
    """Independent uniform factor values, one array per factor."""
    return [rng.randint(size, size=num_points) for size in sizes]


@dataclass(frozen=True)
class Votes:
    """Groups of points that share the value of one factor: which factor, and the rows of each group."""

    factor: Integer[np.ndarray, " votes"]
    rows: Integer[np.ndarray, "group votes"]


def fixed_factor_votes(
    table: FactorTable, num_votes: int, group: int, rng: np.random.RandomState
) -> Iterator[Votes]:
    """Groups of `group` random points that agree in a random factor, in chunks; consumes `rng`."""
    if not table.is_grid:
        factor = rng.randint(len(table.sizes), size=num_votes)
        rows = np.repeat(rng.randint(len(table.codes), size=num_votes)[None], group, axis=0)
        for k in range(len(table.sizes)):
            rows[:, factor == k] = table.rows_sharing(k, rows[:, factor == k], rng)
        yield Votes(factor, rows)
        return
    for factor, columns in grouped_draws(table.sizes, num_votes, group, rng):
        for k, column in enumerate(columns):
            is_fixed = factor == k
            column[is_fixed] = column[is_fixed, :1]
        yield Votes(factor, np.ascontiguousarray(table.rows(columns).T))


def varied_factor_votes(
    table: FactorTable, num_votes: int, group: int, rng: np.random.RandomState
) -> Iterator[Votes]:
    """Groups of points that differ in a random factor only."""
    if not table.is_grid:
        raise ValueError("groups in which one factor varies alone need a full grid of factor values")
    factor = rng.randint(len(table.sizes), size=num_votes)
    columns = [np.repeat(column[None], group, axis=0) for column in draw_factors(table.sizes, num_votes, rng)]
    for k, column in enumerate(columns):
        column[:, factor == k] = rng.randint(table.sizes[k], size=(group, np.count_nonzero(factor == k)))
    yield Votes(factor, table.rows(columns))


@dataclass(frozen=True)
class Pairs:
    """Pairs of points that share the value of one factor: which factor, and the rows of both sides."""

    factor: Integer[np.ndarray, " votes"]
    first: Integer[np.ndarray, "votes group"]
    second: Integer[np.ndarray, "votes group"]


def fixed_factor_pairs(
    table: FactorTable, num_votes: int, group: int, rng: np.random.RandomState
) -> Iterator[Pairs]:
    """`group` pairs of random points for each vote, each pair agreeing in a random factor; consumes `rng`."""
    num_factors = len(table.sizes)
    if not table.is_grid:
        factor = rng.randint(num_factors, size=num_votes)
        first = rng.randint(len(table.codes), size=(num_votes, group))
        second = first.copy()
        for k in range(num_factors):
            second[factor == k] = table.rows_sharing(k, first[factor == k], rng)
        yield Pairs(factor, first, second)
        return
    for factor, columns in grouped_draws(table.sizes, num_votes, group, rng, repeats=2):
        first_columns, second_columns = columns[:num_factors], columns[num_factors:]
        for k in range(num_factors):
            second_columns[k][factor == k] = first_columns[k][factor == k]
        yield Pairs(factor, table.rows(first_columns), table.rows(second_columns))
