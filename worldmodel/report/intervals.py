"""95 % intervals: one definition for every table, figure and diagnostic.

    mean over n episodes, seeds or points   mean +- t(n - 1) s / sqrt(n), s the sample's standard deviation
    share p of n trials (Wilson)            (p + z^2/2n +- z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)
    median of n values                      order statistics at the ranks 1/2 +- z / (2 sqrt(n))
    function of means (bootstrap)           its 2.5 % and 97.5 % quantiles over resampled episodes
    another statistic v (jackknife)         v +- t(k - 1) sqrt((k - 1)/k sum_i (v_i - mean v_i)^2)

t(n - 1) is the 97.5 % quantile of Student's t with n - 1 degrees of freedom (4.30 for n = 3, 2.78 for 5, 2.26
for 10, 2.00 for 64) and z = 1.96 its limit. With few seeds z would be too optimistic: for n = 5 such an
interval contains the true mean only 88 % of the time. v_i is the statistic without block i of k. For a mean,
the jackknife with k = n equals the t interval. A single value has no interval: its ends are NaN.

References: Student, The probable error of a mean, 1908. Wilson, Probable inference, the law of succession,
and statistical inference, 1927. Tukey, Bias and confidence in not-quite large samples, 1958. Efron, Bootstrap
methods: another look at the jackknife, 1979.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

Interval = tuple[float, float]
Values = Sequence[float] | Float[np.ndarray, " n"]  # one number per episode; nan where there is none
LEVEL = 0.95
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
UNKNOWN = (float("nan"), float("nan"))  # a single value has no measurable spread
RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A number from a sample, with its 95 % interval."""

    mean: float
    low: float  # ends of the 95 % interval; NaN if there is none
    high: float
    count: int  # number of episodes, seeds or trials

    def text(self, digits: int = 2) -> str:
        """Format for a table: "25.40 [24.90, 25.90]"."""
        if not self.count:
            return "-"
        if not (np.isfinite(self.low) and np.isfinite(self.high)):
            return f"{self.mean:.{digits}f}"  # one episode or seed has no interval
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def percent(self) -> str:
        """Format a share for a table: "48 % [40, 56]"."""
        if not self.count:
            return "-"
        scaled = Estimate(100 * self.mean, 100 * self.low, 100 * self.high, self.count)
        number, mark, interval = scaled.text(0).partition(" [")
        return f"{number} %{mark}{interval}"

    def to_dict(self) -> dict[str, float | int | None]:
        """Values for JSON, with None for NaN, which JSON lacks."""
        return {name: value if np.isfinite(value) else None for name, value in asdict(self).items()}


NOTHING = Estimate(float("nan"), *UNKNOWN, count=0)


def estimate_of(values: Mapping[str, Any] | None) -> Estimate:
    """Rebuild the estimate from `Estimate.to_dict`."""
    if not values or not values["count"]:
        return NOTHING
    ends = {name: float("nan") if values[name] is None else values[name] for name in ("mean", "low", "high")}
    return Estimate(**ends, count=values["count"])


def mean_estimate(values: Values) -> Estimate:
    """Mean and Student's t interval; missing numbers (nan) are ignored.

    Example:
        >>> mean_estimate([1.0, 2.0, 3.0, 4.0, 5.0]).text()
        '3.00 [1.04, 4.96]'
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return NOTHING
    return Estimate(float(known.mean()), *mean_interval(known), count=len(known))


def mean_interval(values: Float[np.ndarray, " items"]) -> Interval:
    """Student's t interval of the mean; nan to nan for a single value."""
    if len(values) < 2:
        return UNKNOWN
    mean, half = float(values.mean()), _t(len(values)) * float(values.std(ddof=1)) / len(values) ** 0.5
    return mean - half, mean + half


def share_estimate(hits: int, trials: int) -> Estimate:
    """A share and its Wilson interval.

    Example:
        >>> share_estimate(48, 48).percent()
        '100 % [93, 100]'
    """
    if not trials:
        return NOTHING
    interval = stats.binomtest(hits, trials).proportion_ci(LEVEL, method="wilson")
    return Estimate(hits / trials, float(interval.low), float(interval.high), trials)


def wilson_interval(hits: int, trials: int) -> Interval:
    """Wilson's interval of a share; nan to nan without trials."""
    share = share_estimate(hits, trials)
    return share.low, share.high


def win_estimate(ours: Values, theirs: Values, *, higher_is_better: bool, tie: float = 0.0) -> Estimate:
    """The share of episodes in which we are better by more than `tie`."""
    table = np.stack([np.asarray(ours, np.float64), np.asarray(theirs, np.float64)])
    table = table[:, ~np.isnan(table).any(0)]
    gain = (table[0] - table[1]) * (1 if higher_is_better else -1)
    return share_estimate(int((gain > tie).sum()), table.shape[1])


def median_interval(values: Float[np.ndarray, " n"]) -> Interval:
    """Order statistics around the median, by the normal limit of the binomial ranks."""
    half = float(stats.norm.ppf(ENDS[1])) / 2 / len(values) ** 0.5
    low, high = np.quantile(values, (max(0.0, 0.5 - half), min(1.0, 0.5 + half)), method="nearest")
    return float(low), float(high)


def gap_closed(
    floor: Values, value: Values, ceiling: Values, *, higher_is_better: bool | None = None, seed: int = 0
) -> Estimate:
    """The share of the gap from floor to ceiling that is closed, on means over episodes; bootstrap interval.

    The same formula serves dB (larger is better) and squared errors (smaller is better). A ratio of means,
    not a mean of ratios: an episode whose floor equals its ceiling has no ratio. If `higher_is_better` is
    given and the ceiling is no better than the floor, there is no gap: NOTHING.
    """
    if higher_is_better is not None and not _is_above(floor, value, ceiling, higher_is_better):
        return NOTHING
    return _bootstrap((floor, value, ceiling), lambda low, made, high: (made - low) / (high - low), seed)


def _is_above(floor: Values, value: Values, ceiling: Values, higher_is_better: bool) -> bool:
    """Whether the ceiling is better than the floor, over the episodes that have all three."""
    table = np.stack([np.asarray(column, np.float64) for column in (floor, value, ceiling)], 1)
    low, _, high = table[~np.isnan(table).any(1)].sum(0)
    return bool(high > low if higher_is_better else high < low)


def ratio_estimate(value: Values, base: Values, *, seed: int = 0) -> Estimate:
    """The mean of `value` over the mean of `base`, for the same episodes; bootstrap interval."""
    return _bootstrap((value, base), lambda made, reference: made / reference, seed)


def bootstrap_interval(draws: Float[np.ndarray, " samples"]) -> Interval:
    """Percentile interval from the values of a statistic on resampled data; nan draws are ignored."""
    # Infinite values, as from a base of 0, cannot be interpolated.
    method: Literal["nearest", "linear"] = "nearest" if np.isinf(draws).any() else "linear"
    low, high = np.nanquantile(draws, ENDS, method=method)
    return float(low), float(high)


def jackknife_interval(
    value: float, statistic: Callable[[Bool[np.ndarray, " n"]], float], num_points: int, blocks: int = 10
) -> Interval:
    """Interval around `value` from leaving out one block of the points at a time.

    `statistic` is called with the mask of the points to keep.
    """
    if num_points < 2:
        return UNKNOWN
    blocks = min(blocks, num_points)
    block = np.arange(num_points) % blocks
    parts = np.array([statistic(block != left_out) for left_out in range(blocks)])
    error = float(np.sqrt((blocks - 1) / blocks * np.square(parts - parts.mean()).sum()))
    return value - _t(blocks) * error, value + _t(blocks) * error


def interval_text(interval: Interval, num_points: int) -> str:
    """An interval for a table of results; `num_points` values went into it, and one alone has none."""
    return "one point" if num_points < 2 else f"{interval[0]:.3g} to {interval[1]:.3g}"


def _t(count: int) -> float:
    """Half width of a 95 % interval in standard errors, for a mean of `count` values."""
    return float(stats.t.ppf(ENDS[1], count - 1))


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
    interval = bootstrap_interval(values[1:]) if len(table) > 1 else UNKNOWN
    return Estimate(float(values[0]), *interval, count=len(table))
