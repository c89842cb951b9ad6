"""Means and shares over episodes, each with its 95 % interval."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

Values = Sequence[float] | Float[np.ndarray, " n"]  # one number per episode; nan where there is none
LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A number from a sample of episodes."""

    mean: float
    low: float  # ends of the 95 % interval
    high: float
    count: int  # episodes

    def text(self, digits: int = 2) -> str:
        """As it stands in a table."""
        if not self.count:
            return "-"
        if not (np.isfinite(self.low) and np.isfinite(self.high)):
            return f"{self.mean:.{digits}f}"  # one episode or seed has no interval
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def to_dict(self) -> dict[str, float | int | None]:
        """For JSON, which has no word for a missing number."""
        return {name: value if np.isfinite(value) else None for name, value in asdict(self).items()}


NOTHING = Estimate(float("nan"), float("nan"), float("nan"), 0)


def mean_estimate(values: Values) -> Estimate:
    """Mean and t interval; numbers that are missing (nan) are left out."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    count = len(known)
    if not count:
        return NOTHING
    mean = float(known.mean())
    if count == 1:
        return Estimate(mean, float("-inf"), float("inf"), 1)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * known.std(ddof=1) / count**0.5)
    return Estimate(mean, mean - half, mean + half, count)


def share_estimate(hits: int, trials: int) -> Estimate:
    """A share and its Wilson interval."""
    if not trials:
        return NOTHING
    interval = stats.binomtest(hits, trials).proportion_ci(LEVEL, method="wilson")
    return Estimate(hits / trials, float(interval.low), float(interval.high), trials)


def gap_closed(floor: Values, value: Values, ceiling: Values, *, seed: int = 0) -> Estimate:
    """Which share of the way from floor to ceiling is made, on means over episodes; bootstrap interval.

    The same formula serves dB (larger is better) and squared errors (smaller is better). A ratio of means,
    not a mean of ratios: an episode whose floor is at its ceiling already would have no ratio.
    """
    return _bootstrap((floor, value, ceiling), lambda low, made, high: (made - low) / (high - low), seed)


def ratio_estimate(value: Values, base: Values, *, seed: int = 0) -> Estimate:
    """The mean of `value` over the mean of `base`, for the same episodes; bootstrap interval."""
    return _bootstrap((value, base), lambda made, reference: made / reference, seed)


def _bootstrap(columns: Sequence[Values], statistic: Callable[..., np.ndarray], seed: int) -> Estimate:
    """A function of the columns' means, with the interval of resampled episodes."""
    table = np.stack([np.asarray(column, np.float64) for column in columns], 1)
    table = table[~np.isnan(table).any(1)]
    if not len(table):
        return NOTHING
    rows = np.random.default_rng(seed).integers(len(table), size=(RESAMPLES, len(table)))
    means = np.concatenate([table.mean(0)[None], table[rows].mean(1)])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(*means.T)
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    if np.isinf(values).any():  # a base of 0: between infinite values there is nothing to interpolate
        low, high = np.nanquantile(values[1:], ends, method="nearest")
    else:
        low, high = np.nanquantile(values[1:], ends)
    return Estimate(float(values[0]), float(low), float(high), len(table))


def win_estimate(ours: Values, theirs: Values, *, higher_is_better: bool, tie: float = 0.0) -> Estimate:
    """In which share of episodes we are better, by more than `tie`; a tie is no win."""
    table = np.stack([np.asarray(ours, np.float64), np.asarray(theirs, np.float64)])
    table = table[:, ~np.isnan(table).any(0)]
    gain = (table[0] - table[1]) * (1 if higher_is_better else -1)
    return share_estimate(int((gain > tie).sum()), table.shape[1])
