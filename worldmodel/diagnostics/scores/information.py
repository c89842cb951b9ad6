"""Plug-in estimates of entropy and mutual information between discrete columns, in nats."""

import numpy as np
from jaxtyping import Float, Int, Num


def equal_width_bins(points: Num[np.ndarray, "n d"], num_bins: int) -> Int[np.ndarray, "n d"]:
    """Bin of each value, `num_bins` of equal width over the range of its column."""
    edges = (np.histogram(column, num_bins)[1][:-1] for column in points.T)
    return np.stack([np.digitize(column, edge) for column, edge in zip(points.T, edges, strict=True)], axis=1)


def entropies(values: Num[np.ndarray, "n k"]) -> Float[np.ndarray, " k"]:
    """Entropy of each column."""
    return np.array([_entropy(np.unique(column, return_counts=True)[1]) for column in values.T])


def mutual_information(
    first: Num[np.ndarray, "n d"], second: Num[np.ndarray, "n k"]
) -> Float[np.ndarray, "d k"]:
    """Mutual information of every column of `first` with every column of `second`."""
    # I(a; b) = H(a) + H(b) - H(a, b), with the pair (a, b) as one label
    labels, values = _labels(first), _labels(second)
    joint = [[_entropy(np.bincount(a * (b.max() + 1) + b)) for b in values.T] for a in labels.T]
    # Rounding must not make a difference of entropies negative.
    return np.maximum(entropies(labels)[:, None] + entropies(values) - np.array(joint), 0.0)


def _labels(values: Num[np.ndarray, "n k"]) -> Int[np.ndarray, "n k"]:
    return np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)


def _entropy(counts: Int[np.ndarray, " labels"]) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
