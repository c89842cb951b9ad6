"""How closely representations agree: between runs (statistical) and with the true factors (structural).

    epsilon^2 = mean |r - h(r')|^2 / mean |r - mean r|^2        over test rows, h fitted on the other rows

for h affine, rigid (rotation, reflection, shift; optionally one common scale) and, after independent
component analysis of both sides, a signed permutation. 0 is identity, 1 is no better than the mean of r.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Num
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from worldmodel.diagnostics.identifiability.ica import IcaAligner
from worldmodel.diagnostics.identifiability.representation_maps import (
    apply_match,
    epsilon,
    fit_affine,
    fit_rigid,
    match,
    mean_correlation,
    r_squared,
)
from worldmodel.diagnostics.scores.disentanglement import Score


@dataclass(frozen=True)
class Agreement:
    """How closely one representation can be mapped to another (or to the factors)."""

    target: str
    source: str
    affine_r2: Score  # mean over the target's dimensions; 1 is best
    epsilon_rigid: Score  # 0 is best, here and below
    epsilon_scaled: Score  # rigid with one common scale
    epsilon_permutation: Score  # signed permutation of unit-variance independent components
    mcc: Score  # matched |correlation| of the original dimensions; 1 is best
    mcc_ica: Score  # of the independent components
    num_test: int


@dataclass(frozen=True)
class Side:
    """One representation, with its independent components."""

    name: str
    view: Float[np.ndarray, "n d"]
    components: Float[np.ndarray, "n k"]


class NearIdentifiability(BaseEstimator):
    """Aligns all pairs of runs, and each run with the factors if they are given.

    `ica` is cloned for each run. Maps are fitted on `fit_share` of the rows, drawn at random, and scored on
    the others; `match_on="test"` matches columns on the test rows themselves, as much of the literature does.

    After `fit`: `statistical_` and `structural_` (tuples of Agreement), `aligners_` (one IcaAligner per run).

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import NearIdentifiability
        >>> rng = np.random.default_rng(0)
        >>> factors = rng.laplace(size=(2000, 2))
        >>> rotation = np.array([[0.8, -0.6], [0.6, 0.8]])
        >>> runs = [factors, factors @ rotation]  # two "trainings" that differ by a rotation
        >>> result = NearIdentifiability(num_bootstrap=20).fit(runs, factors)
        >>> agreement = result.statistical_[0]
        >>> agreement.epsilon_rigid.value < 1e-6, agreement.mcc_ica.value > 0.99
        (True, True)

    References:
        "Statistical and structural identifiability in representation learning", 2026.
    """

    def __init__(
        self,
        *,
        ica: IcaAligner | None = None,
        fit_share: float = 0.5,
        match_on: Literal["fit", "test"] = "fit",
        num_bootstrap: int = 200,
        seed: int = 0,
    ) -> None:
        self.ica = ica
        self.fit_share = fit_share
        self.match_on = match_on
        self.num_bootstrap = num_bootstrap
        self.seed = seed

    def fit(
        self,
        runs: Sequence[Num[np.ndarray, "n _"]],
        factors: Num[np.ndarray, "n num_factors"] | None = None,
        *,
        fit_rows: Bool[np.ndarray, " n"] | None = None,
    ) -> "NearIdentifiability":
        """Compares the runs; row i of every run, and of the factors, must belong to the same input."""
        views = [np.asarray(run, dtype=np.float64) for run in runs]
        truth = None if factors is None else _standardize(np.asarray(factors, dtype=np.float64))
        fit_rows = self._split(views, truth) if fit_rows is None else fit_rows
        self.aligners_ = [clone(self.ica or IcaAligner()).fit(view[fit_rows]) for view in views]
        parts = [aligner.transform(view) for aligner, view in zip(self.aligners_, views, strict=True)]
        weights = self._bootstrap_weights(int(np.count_nonzero(~fit_rows)))
        sides = [
            Side(f"run {i}", view, part) for i, (view, part) in enumerate(zip(views, parts, strict=True))
        ]
        self.statistical_ = tuple(
            self._agreement(first, second, fit_rows, weights)
            for first, second in itertools.combinations(sides, 2)
        )
        self.structural_ = tuple(
            self._agreement(Side("factors", truth, truth), side, fit_rows, weights)
            for side in sides
            if truth is not None
        )
        self._matches = [match(parts[0][fit_rows], part[fit_rows]) for part in parts]
        return self

    def transform(self, runs: Sequence[Num[np.ndarray, "n _"]]) -> list[Float[np.ndarray, "n _"]]:
        """Independent components of each run, in the order and with the signs of the first run's.

        A component of the first run without a match becomes a column of zeros.
        """
        check_is_fitted(self)
        return [
            apply_match(aligner.transform(run), order, sign)
            for aligner, run, (order, sign) in zip(self.aligners_, runs, self._matches, strict=True)
        ]

    def _split(self, views: list[np.ndarray], truth: np.ndarray | None) -> np.ndarray:
        lengths = [len(view) for view in views] + ([] if truth is None else [len(truth)])
        if not views or len(set(lengths)) != 1:
            raise ValueError(f"runs and factors need the same number of rows, got {lengths}")
        if not 0 < self.fit_share < 1:
            raise ValueError(f"fit_share must lie between 0 and 1, got {self.fit_share}")
        order = np.random.default_rng(self.seed).permutation(lengths[0])
        return order < round(self.fit_share * lengths[0])

    def _bootstrap_weights(self, num_test: int) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        counts = rng.multinomial(num_test, np.full(num_test, 1 / num_test), size=self.num_bootstrap)
        return counts / num_test

    def _agreement(self, target: Side, source: Side, fit_rows: np.ndarray, weights: np.ndarray) -> Agreement:
        y, x = target.view[~fit_rows], source.view[~fit_rows]
        fitted = target.view[fit_rows], source.view[fit_rows]
        component, matched = self._matched(target.components, source.components, fit_rows)
        scores = {
            "affine_r2": r_squared(y, fit_affine(*fitted)(x)),
            "epsilon_rigid": epsilon(y, fit_rigid(*fitted)(x)),
            "epsilon_scaled": epsilon(y, fit_rigid(*fitted, scaled=True)(x)),
            "epsilon_permutation": epsilon(component, matched),
            "mcc": mean_correlation(*self._matched(target.view, source.view, fit_rows)),
            "mcc_ica": mean_correlation(component, matched),
        }
        scored = {name: score.estimate(weights) for name, score in scores.items()}
        return Agreement(target.name, source.name, num_test=len(y), **scored)

    def _matched(
        self, target: np.ndarray, source: np.ndarray, fit_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Test rows of the target, and of the source with its columns matched to them."""
        matching_rows = fit_rows if self.match_on == "fit" else ~fit_rows
        order, sign = match(target[matching_rows], source[matching_rows])
        return target[~fit_rows], apply_match(source[~fit_rows], order, sign)


def _standardize(factors: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    spread = factors.std(0)
    if (spread == 0).any():
        raise ValueError(
            f"factors {np.flatnonzero(spread == 0).tolist()} take one value only: leave them out"
        )
    return (factors - factors.mean(0)) / spread
