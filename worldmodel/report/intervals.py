"""95 % intervals for scores."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

Interval = tuple[float, float]
Z = 1.959964  # standard deviations of a normal distribution that hold 95 %
UNKNOWN = (float("nan"), float("nan"))  # one value says nothing about its spread


def wilson_interval(hits: int, trials: int) -> Interval:
    """Wilson's interval of a proportion."""
    center = (hits + Z * Z / 2) / (trials + Z * Z)
    half = Z / (trials + Z * Z) * (hits * (trials - hits) / trials + Z * Z / 4) ** 0.5
    return max(0.0, center - half), min(1.0, center + half)


def mean_interval(values: Float[np.ndarray, " items"]) -> Interval:
    """Normal interval of the mean of a few values; nan to nan when there is one value only."""
    if len(values) < 2:
        return UNKNOWN
    half = Z * float(values.std(ddof=1)) / len(values) ** 0.5
    return float(values.mean()) - half, float(values.mean()) + half


def jackknife_interval(
    value: float, statistic: Callable[[Bool[np.ndarray, " n"]], float], num_points: int, blocks: int = 10
) -> Interval:
    """Interval around `value` from leaving out one block of the points at a time.

    `statistic` takes the mask of the points to keep.
    """
    if num_points < 2:
        return UNKNOWN
    blocks = min(blocks, num_points)
    block = np.arange(num_points) % blocks
    parts = np.array([statistic(block != left_out) for left_out in range(blocks)])
    half = Z * float(np.sqrt((blocks - 1) / blocks * np.square(parts - parts.mean()).sum()))
    return value - half, value + half


def interval_text(interval: Interval, num_points: int) -> str:
    """An interval for a table of results."""
    return "one point" if num_points < 2 else f"{interval[0]:.3g} to {interval[1]:.3g}"
