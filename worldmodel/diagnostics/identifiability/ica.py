"""Independent components of a representation, unique up to order and sign."""

import warnings
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Num
from scipy.optimize import linear_sum_assignment
from scipy.stats import kurtosis
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

Contrast = Literal["logcosh", "exp", "cube"]

GAUSSIAN_LOGCOSH = 0.374567207  # E log cosh of a standard normal variable


class IcaAligner(TransformerMixin, BaseEstimator):
    """FastICA on the directions with significant variance, restarted, with measures of its reliability.

    Directions whose standard deviation is below `dead_below` of the largest are dropped first: whitening
    would scale their noise up to unit variance. Components come with unit variance, ordered by the variance
    they explain, and with the sign that makes their largest loading positive.

    After `fit`: `mean_`, `unmixing_` [k, d], `mixing_` [d, k], `num_components_`, `kept_variance_` (share),
    `negentropy_` and `converged_` (per restart), `kurtosis_` (excess, per component), `stability_` (per
    component: 1 if all restarts find it, about 0 if it depends on the initialization).

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import IcaAligner, mcc
        >>> rng = np.random.default_rng(0)
        >>> sources = rng.laplace(size=(2000, 2))
        >>> mixed = sources @ rng.normal(size=(2, 2))
        >>> components = IcaAligner(restarts=2).fit_transform(mixed)
        >>> mcc(sources, components).value > 0.99
        True

    References:
        "Fast and Robust Fixed-Point Algorithms for Independent Component Analysis", 1999.
    """

    def __init__(
        self,
        *,
        dead_below: float = 0.05,
        num_components: int | None = None,
        contrast: Contrast = "logcosh",
        restarts: int = 5,
        max_iter: int = 2000,
        tol: float = 1e-5,
        seed: int = 0,
    ) -> None:
        self.dead_below = dead_below
        self.num_components = num_components
        self.contrast = contrast
        self.restarts = restarts
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed

    def fit(self, X: Num[np.ndarray, "n d"], y: object = None) -> "IcaAligner":
        """Finds the components of `X`; `y` is ignored."""
        points = np.asarray(X, dtype=np.float64)
        self._check(points)
        self.mean_ = points.mean(0)
        variance = np.linalg.eigvalsh(np.cov(points, rowvar=False).reshape(points.shape[1], -1))[::-1]
        alive = int(np.count_nonzero(variance > self.dead_below**2 * max(variance[0], 1e-300)))
        self.num_components_ = min(alive, self.num_components or alive)
        if self.num_components_ == 0:
            raise ValueError("the representation is constant: there is nothing to separate")
        self.kept_variance_ = float(variance[: self.num_components_].sum() / variance.sum())
        runs = [self._run(points, self.seed + restart) for restart in range(self.restarts)]
        self.converged_: Bool[np.ndarray, " restarts"] = np.array([converged for _, converged in runs])
        sources = [run.transform(points) for run, _ in runs]
        self.negentropy_: Float[np.ndarray, " restarts"] = np.array(
            [negentropy(part).sum() for part in sources]
        )
        best = int(self.negentropy_.argmax())
        order, sign = _convention(runs[best][0].mixing_)
        self.unmixing_ = runs[best][0].components_[order] * sign[:, None]
        self.mixing_ = runs[best][0].mixing_[:, order] * sign
        components = sources[best][:, order] * sign
        self.stability_ = _stability(components, sources)
        self.kurtosis_: Float[np.ndarray, " k"] = kurtosis(components)
        self._warn(best, len(points))
        return self

    def transform(self, X: Num[np.ndarray, "n d"]) -> Float[np.ndarray, "n k"]:
        """Components of each row, with unit variance on the data of `fit`."""
        check_is_fitted(self)
        return (np.asarray(X, dtype=np.float64) - self.mean_) @ self.unmixing_.T

    def inverse_transform(self, components: Num[np.ndarray, "n k"]) -> Float[np.ndarray, "n d"]:
        """Representation with these components; dropped directions stay at their mean."""
        check_is_fitted(self)
        return components @ self.mixing_.T + self.mean_

    def _check(self, points: np.ndarray) -> None:
        if self.restarts < 1 or not 0 <= self.dead_below < 1:
            raise ValueError(
                f"restarts must be positive and dead_below in [0, 1), got {self.restarts}, {self.dead_below}"
            )
        if points.ndim != 2 or len(points) <= points.shape[1] or not np.isfinite(points).all():
            raise ValueError(f"finite points [n, d] with n > d are needed, got shape {points.shape}")

    def _run(self, points: np.ndarray, seed: int) -> tuple[FastICA, bool]:
        model = FastICA(
            n_components=self.num_components_,
            whiten="unit-variance",
            fun=self.contrast,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=seed,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(points)
        return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)

    def _warn(self, best: int, num_points: int) -> None:
        if not self.converged_[best]:
            warnings.warn(
                f"FastICA did not converge in {self.max_iter} iterations "
                f"({np.count_nonzero(self.converged_)} of {self.restarts} restarts did)",
                ConvergenceWarning,
                stacklevel=3,
            )
        # Four standard errors of the kurtosis of a normal sample, and at least 0.1
        is_normal = np.abs(self.kurtosis_) < max(0.1, 4 * (24 / num_points) ** 0.5)
        if np.count_nonzero(is_normal) > 1:
            warnings.warn(
                f"components {np.flatnonzero(is_normal).tolist()} look Gaussian (excess kurtosis "
                f"{np.round(self.kurtosis_[is_normal], 2).tolist()}): their directions are arbitrary",
                stacklevel=3,
            )


def negentropy(components: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " k"]:
    """Distance from a normal variable, (E log cosh y - E log cosh normal)^2, of unit-variance components."""
    # log cosh y without overflow
    magnitude = np.abs(components)
    log_cosh = magnitude + np.log1p(np.exp(-2 * magnitude)) - np.log(2)
    return np.square(log_cosh.mean(0) - GAUSSIAN_LOGCOSH)


def _convention(mixing: Float[np.ndarray, "d k"]) -> tuple[np.ndarray, np.ndarray]:
    """The order by explained variance, and the signs that make the largest loadings positive."""
    order = np.argsort(-np.square(mixing).sum(0), kind="stable")
    ordered = mixing[:, order]
    largest = np.abs(ordered).argmax(0)
    return order, np.where(ordered[largest, np.arange(len(order))] < 0, -1.0, 1.0)


def _stability(
    components: Float[np.ndarray, "n k"], restarts: list[Float[np.ndarray, "n k"]]
) -> Float[np.ndarray, " k"]:
    """Per component, |correlation| with its matches in all restarts, minus that with all other components."""
    count, size = len(restarts), components.shape[1]
    if count == 1:
        return np.full(size, np.nan)
    unit = components / np.linalg.norm(components, axis=0)
    matched = []
    for sources in restarts:
        other = sources / np.linalg.norm(sources, axis=0)
        matched.append(other[:, linear_sum_assignment(np.abs(unit.T @ other), maximize=True)[1]])
    pooled = np.concatenate(matched, axis=1)
    similarity = np.abs(pooled.T @ pooled).reshape(count, size, count, size).transpose(1, 3, 0, 2)
    inside = (similarity[np.arange(size), np.arange(size)].sum((1, 2)) - count) / (count * (count - 1))
    if size == 1:
        return inside
    among = similarity.mean((2, 3))
    outside = (among.sum(1) - np.diag(among)) / (size - 1)
    return inside - outside
