"""95 % intervals for scores."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

Interval = tuple[float, float]
Z = 1.959964  # standard deviations of a normal distribution that hold 95 %


def wilson_interval(hits: int, trials: int) -> Interval:
    """Wilson's interval of a proportion."""
    centre = (hits + Z * Z / 2) / (trials + Z * Z)
    half = Z / (trials + Z * Z) * (hits * (trials - hits) / trials + Z * Z / 4) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Float[np.ndarray, " items"]) -> Interval:
    """Normal interval of the mean of a few values; no width when there is one value only."""
    half = Z * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(values.mean()) - half, float(values.mean()) + half


def jackknife_interval(
    value: float, statistic: Callable[[Bool[np.ndarray, " n"]], float], num_points: int, blocks: int = 10
) -> Interval:
    """Interval around `value` from leaving out one block of the points at a time.

    `statistic` takes the mask of the points to keep.
    """
    blocks = min(blocks, num_points)
    block = np.arange(num_points) % blocks
    parts = np.array([statistic(block != left_out) for left_out in range(blocks)])
    half = Z * float(np.sqrt((blocks - 1) / blocks * np.square(parts - parts.mean()).sum()))
    return value - half, value + half
