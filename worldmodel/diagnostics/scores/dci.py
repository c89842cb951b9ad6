"""DCI: disentanglement, completeness and informativeness from the importance of each code for each factor."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer, Num
from scipy.stats import entropy
from tqdm import tqdm

from worldmodel.diagnostics.scores.boosted_trees import fit_boosted_trees
from worldmodel.diagnostics.scores.factor_sampling import check_counts, factor_table, sample_points
from worldmodel.report.intervals import UNKNOWN, Interval, jackknife_interval

REFERENCE_COUNTS = (10_000, 5_000)  # training and test points; scores at other counts are not comparable


@dataclass(frozen=True)
class Dci:
    """The three scores, with the importance matrix they were computed from."""

    disentanglement: float
    completeness: float
    informativeness: float  # accuracy on test points, mean over factors
    informativeness_train: float
    interval: Interval  # 95 % interval of disentanglement, by leaving out one factor at a time
    importance: Float[np.ndarray, "d num_factors"]
    num_train: int
    num_test: int
    comparable: bool  # whether averaging and sample counts are the published ones


def dci(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = REFERENCE_COUNTS[0],
    num_test: int = REFERENCE_COUNTS[1],
    weighted: bool = True,
    jobs: int | None = None,
    progress: bool = False,
) -> Dci:
    """DCI with one gradient-boosting classifier per factor, `jobs` at a time (None: one per processor).

    `weighted=False` is the unweighted mean over codes that some papers use; a dead code then counts as
    entangled.

    With P_jk the share of code j's importance that goes to factor k, disentanglement is the weighted mean
    over codes of `1 + sum_k P_jk log_K P_jk`. Completeness is the same over factors. Informativeness is the
    accuracy of the classifiers.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import dci
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> result = dci(codes, factors, num_train=500, num_test=500, jobs=1)
        >>> round(result.disentanglement, 2), result.comparable  # published counts: 10,000 and 5,000
        (1.0, False)

    References:
        "A Framework for the Quantitative Evaluation of Disentangled Representations", 2018.
    """
    check_counts(num_train=num_train, num_test=num_test)
    table = factor_table(codes, factors)
    rng = np.random.RandomState(seed)
    train, test = sample_points(table, num_train, rng), sample_points(table, num_test, rng)

    def fit(factor: int) -> tuple[np.ndarray, float, float]:
        return _fit_factor(train[0], train[1][:, factor], test[0], test[1][:, factor], seed)

    # Cost grows with the number of classes: the longest job first, so that no processor waits at the end.
    order = sorted(range(len(table.sizes)), key=lambda factor: -table.sizes[factor])
    # Threads suffice, because trees are grown outside the interpreter lock.
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        fits = tqdm(pool.map(fit, order), total=len(order), desc="DCI factors", disable=not progress)
        parts = dict(zip(order, fits, strict=True))
    importance, train_accuracy, accuracy = zip(*(parts[k] for k in range(len(order))), strict=True)
    matrix = np.stack(importance, axis=1)
    return Dci(
        disentanglement(matrix, weighted=weighted),
        completeness(matrix, weighted=weighted),
        float(np.mean(accuracy)),
        float(np.mean(train_accuracy)),
        _factor_jackknife(matrix, weighted),
        matrix,
        num_train,
        num_test,
        weighted and (num_train, num_test) == REFERENCE_COUNTS,
    )


def disentanglement(importance: Float[np.ndarray, "d num_factors"], *, weighted: bool = True) -> float:
    """1 - entropy of each code's importances over factors, averaged by the code's share of importance."""
    if importance.shape[1] == 1:
        return 1.0
    per_code = 1.0 - np.asarray(entropy(importance.T + 1e-11, base=importance.shape[1]))
    return _average(per_code, importance.sum(1), weighted)


def completeness(importance: Float[np.ndarray, "d num_factors"], *, weighted: bool = True) -> float:
    """1 - entropy of each factor's importances over codes, averaged by the factor's share."""
    if importance.shape[0] == 1:
        return 1.0
    per_factor = 1.0 - np.asarray(entropy(importance + 1e-11, base=importance.shape[0]))
    return _average(per_factor, importance.sum(0), weighted)


def _average(values: np.ndarray, weights: np.ndarray, weighted: bool) -> float:
    if not weighted or weights.sum() == 0:
        return float(values.mean())
    return float((values * weights).sum() / weights.sum())


def _fit_factor(
    x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, seed: int
) -> tuple[np.ndarray, float, float]:
    """Importances of the codes for one factor, and the accuracies."""
    if (y_train == y_train[0]).all():
        return np.zeros(x_train.shape[1]), 1.0, float((y_test == y_train[0]).mean())
    model = fit_boosted_trees(x_train, y_train, seed=seed)
    train_accuracy = float((model.predict(x_train) == y_train).mean())
    return model.importance, train_accuracy, float((model.predict(x_test) == y_test).mean())


def _factor_jackknife(importance: np.ndarray, weighted: bool) -> Interval:
    value = disentanglement(importance, weighted=weighted)
    if importance.shape[1] < 3:  # entropy over what is left would be that of a single factor
        return UNKNOWN
    return jackknife_interval(
        value,
        lambda keep: disentanglement(importance[:, keep], weighted=weighted),
        num_points=importance.shape[1],
        blocks=importance.shape[1],
    )
