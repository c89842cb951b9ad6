"""Maps between representations, fitted on some rows and scored on others, with a bootstrap over the latter.

Every score here is a function of means over rows, so that a bootstrap sample is a weighting of the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment

from worldmodel.diagnostics.identifiability.correlation import cross_correlation
from worldmodel.diagnostics.scores.disentanglement import Score
from worldmodel.report.intervals import bootstrap_interval


@dataclass(frozen=True)
class RowScore:
    """Statistics of each row, and the score as a function of their means."""

    rows: Float[np.ndarray, "n m"]
    score: Callable[[Float[np.ndarray, "s m"]], Float[np.ndarray, " s"]]

    @property
    def value(self) -> float:
        """The score of all rows."""
        return float(self.score(self.rows.mean(0, keepdims=True))[0])

    def estimate(self, weights: Float[np.ndarray, "samples n"]) -> Score:
        """The score of all rows, and its bootstrap interval over weightings of the rows."""
        return Score(self.value, bootstrap_interval(self.score(weights @ self.rows)), len(self.rows))


@dataclass(frozen=True)
class AffineMap:
    """x -> (x - source_mean) @ matrix + target_mean."""

    source_mean: Float[np.ndarray, " k"]
    target_mean: Float[np.ndarray, " d"]
    matrix: Float[np.ndarray, "k d"]

    def __call__(self, source: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n d"]:
        """Map the source to the target space."""
        return (source - self.source_mean) @ self.matrix + self.target_mean


def fit_affine(target: Float[np.ndarray, "n d"], source: Float[np.ndarray, "n k"]) -> AffineMap:
    """Fit an affine map by least squares."""
    source_mean, target_mean = source.mean(0), target.mean(0)
    matrix = np.linalg.lstsq(source - source_mean, target - target_mean, rcond=None)[0]
    return AffineMap(source_mean, target_mean, matrix)


def fit_rigid(
    target: Float[np.ndarray, "n d"], source: Float[np.ndarray, "n k"], *, scaled: bool = False
) -> AffineMap:
    """Procrustes: rotation or reflection and shift, with one common scale if `scaled`.

    When the dimensions differ, the larger space is projected orthogonally or the smaller one embedded.
    """
    source_mean, target_mean = source.mean(0), target.mean(0)
    left, values, right = np.linalg.svd(
        (source - source_mean).T @ (target - target_mean), full_matrices=False
    )
    scale = values.sum() / np.square(source - source_mean).sum() if scaled else 1.0
    return AffineMap(source_mean, target_mean, scale * left @ right)


def match(
    target: Float[np.ndarray, "n d"], source: Float[np.ndarray, "n k"]
) -> tuple[Int[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """The source column matched to each target column by |correlation| (-1 without one), and its sign."""
    correlation = cross_correlation(torch.from_numpy(target), torch.from_numpy(source)).numpy()
    order, sign = np.full(target.shape[1], -1), np.zeros(target.shape[1])
    rows, columns = linear_sum_assignment(np.abs(correlation), maximize=True)
    order[rows], sign[rows] = columns, np.where(correlation[rows, columns] < 0, -1.0, 1.0)
    return order, sign


def apply_match(
    source: Float[np.ndarray, "n k"], order: Int[np.ndarray, " d"], sign: Float[np.ndarray, " d"]
) -> Float[np.ndarray, "n d"]:
    """The matched columns with their signs; zeros where there is no partner."""
    return source[:, order] * sign


def r_squared(target: Float[np.ndarray, "n d"], predicted: Float[np.ndarray, "n d"]) -> RowScore:
    """Explained share of the variance, mean over the target's dimensions."""
    error = np.square(target - predicted)

    def score(means: np.ndarray) -> np.ndarray:
        residual, mean, square = np.split(means, 3, axis=-1)
        return (1 - residual / (square - np.square(mean))).mean(-1)

    return RowScore(np.concatenate([error, target, np.square(target)], axis=1), score)


def epsilon(target: Float[np.ndarray, "n d"], predicted: Float[np.ndarray, "n d"]) -> RowScore:
    """Root mean square error over the root of the target's total variance."""
    error = np.square(target - predicted).sum(1, keepdims=True)
    size = np.square(target).sum(1, keepdims=True)

    def score(means: np.ndarray) -> np.ndarray:
        variance = means[..., 1] - np.square(means[..., 2:]).sum(-1)
        return np.sqrt(means[..., 0] / variance)

    return RowScore(np.concatenate([error, size, target], axis=1), score)


def mean_correlation(target: Float[np.ndarray, "n d"], matched: Float[np.ndarray, "n d"]) -> RowScore:
    """Mean |correlation| of already matched columns; 0 for a constant column."""
    # Centered first: variances are computed as differences of means of squares.
    first, second = target - target.mean(0), matched - matched.mean(0)
    parts = [first, second, np.square(first), np.square(second), first * second]

    def score(means: np.ndarray) -> np.ndarray:
        a, b, aa, bb, ab = np.split(means, 5, axis=-1)
        variance = (aa - a * a) * (bb - b * b)
        covariance = np.abs(ab - a * b)
        root = np.sqrt(np.maximum(variance, 0.0))
        return np.divide(covariance, root, out=np.zeros_like(root), where=root > 0).mean(-1)

    return RowScore(np.concatenate(parts, axis=1), score)
