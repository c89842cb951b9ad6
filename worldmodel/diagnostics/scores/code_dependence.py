"""Dependence between codes, computed from their covariance alone, without factors.

Both measures compare the Gaussian with the covariance S of the codes to the product of its marginals, of
covariance D = diag(S), and are 0 if the codes are uncorrelated. Axes: n samples, d codes.
"""

import numpy as np
from jaxtyping import Float, Num

CONSTANT = 1e-12  # standard deviation, relative to the code's size, that counts as rounding


def gaussian_total_correlation(codes: Num[np.ndarray, "n d"]) -> float:
    """Kullback-Leibler divergence (log det D - log det S) / 2 in nats; infinite when codes repeat others.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import gaussian_total_correlation
        >>> x, y = np.random.default_rng(0).normal(size=(2, 10_000))
        >>> round(gaussian_total_correlation(np.stack([x, y], axis=1)), 2)
        0.0
        >>> round(gaussian_total_correlation(np.stack([x, x + y], axis=1)), 1)  # correlation 0.71
        0.3

    References:
        "Challenging Common Assumptions in the Unsupervised Learning of Disentangled Representations", 2019.
    """
    correlation = _correlation(_covariance(codes))
    # From correlations: the value is the same as from covariances, without loss of precision at any scale.
    eigenvalues = np.linalg.eigvalsh(correlation)
    if eigenvalues.size and eigenvalues[0] < len(eigenvalues) * np.finfo(np.float64).eps:
        return float("inf")
    return float(-0.5 * np.log(eigenvalues).sum())


def wasserstein_correlation(codes: Num[np.ndarray, "n d"], *, normalized: bool = False) -> float:
    """Squared Wasserstein-2 distance 2 tr S - 2 tr (D^1/2 S D^1/2)^1/2, in squared units of the codes.

    `normalized` divides it by tr S, the total variance.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import wasserstein_correlation
        >>> x, y = np.random.default_rng(0).normal(size=(2, 10_000))
        >>> round(wasserstein_correlation(np.stack([x, y], axis=1), normalized=True), 2)
        0.0

    References:
        "Challenging Common Assumptions in the Unsupervised Learning of Disentangled Representations", 2019.
    """
    covariance = _covariance(codes)
    total = float(np.trace(covariance))
    spread = np.sqrt(np.diag(covariance))
    roots = np.sqrt(np.linalg.eigvalsh(covariance * np.outer(spread, spread)).clip(min=0))
    distance = max(2 * total - 2 * float(roots.sum()), 0.0)
    return distance / total if normalized and total else distance


def _covariance(codes: Num[np.ndarray, "n d"]) -> Float[np.ndarray, "active active"]:
    """Covariance of the non-constant codes: a constant depends on nothing."""
    if len(codes) < 2 or not np.isfinite(codes).all():
        raise ValueError(f"finite codes [n, d] of at least 2 samples are needed, got {codes.shape}")
    active = codes[:, np.ptp(codes, axis=0) > CONSTANT * np.abs(codes).max(0)].astype(np.float64)
    return np.atleast_2d(np.cov(active, rowvar=False)) if active.shape[1] else np.zeros((0, 0))


def _correlation(covariance: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    spread = np.sqrt(np.diag(covariance))
    return covariance / np.outer(spread, spread)
