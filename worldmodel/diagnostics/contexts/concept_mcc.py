"""Tests whether blocks of codes contain the factors they are named after, by held-out linear prediction.

Axes: n samples, m blocks, o dimensions of a block, K factors.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment

from worldmodel.report.intervals import Interval, jackknife_interval

RIDGE = 1e-6  # of a block's variance: uninformative dimensions must not break the fit


@dataclass(frozen=True)
class ConceptMcc:
    """Correlations of factors with their linear predictions from each block."""

    aligned: float  # mean over concepts, factor j from block j
    matched: float  # mean after the best one-to-one matching of factors and blocks
    interval: Interval  # 95 %, of `aligned`
    table: Float[np.ndarray, "K m"]  # factor by block
    assignment: Int[np.ndarray, " K"]  # block matched to each factor
    num_samples: int  # scored samples; the predictions were fitted on as many others


def concept_mcc(codes: Float[np.ndarray, "n m o"], factors: Float[np.ndarray, "n K"]) -> ConceptMcc:
    """Predict each factor linearly from each block on the first half of the samples, score the second.

    Blocks that interventions assign to a factor should contain it without any matching: `aligned`.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import concept_mcc
        >>> factors = np.random.default_rng(0).normal(size=(400, 3))
        >>> codes = np.stack([factors, factors**2], axis=2)  # block k holds factor k, in two dimensions
        >>> round(concept_mcc(codes, factors).aligned, 3)
        1.0

    References:
        "Intervening to Learn and Compose Causally Disentangled Representations", 2025.
    """
    if len(codes) != len(factors) or codes.shape[1] != factors.shape[1] or len(codes) < 8:
        raise ValueError(
            "as many samples (at least 8) and as many blocks as factors are needed, "
            f"got codes {codes.shape} and factors {factors.shape}"
        )
    half = len(codes) // 2
    predicted = _predictions(codes.astype(np.float64), factors.astype(np.float64), half)
    truth = factors[half:].astype(np.float64)

    def table(keep: np.ndarray) -> np.ndarray:
        return _correlations(truth[keep], predicted[keep])

    whole = table(np.ones(len(truth), dtype=bool))
    rows, columns = linear_sum_assignment(whole, maximize=True)
    aligned = float(np.diag(whole).mean())
    interval = jackknife_interval(aligned, lambda keep: float(np.diag(table(keep)).mean()), len(truth))
    return ConceptMcc(aligned, float(whole[rows, columns].mean()), interval, whole, columns, len(truth))


def _predictions(codes: np.ndarray, factors: np.ndarray, half: int) -> Float[np.ndarray, "n m K"]:
    centers = codes[:half].mean(0)
    blocks = codes - centers
    targets = factors[:half] - factors[:half].mean(0)
    made = []
    for number in range(codes.shape[1]):
        known = blocks[:half, number]
        gram = known.T @ known
        ridge = RIDGE * max(np.trace(gram) / len(gram), 1e-12)
        made.append(
            blocks[half:, number] @ np.linalg.solve(gram + ridge * np.eye(len(gram)), known.T @ targets)
        )
    return np.stack(made, 1)


def _correlations(truth: np.ndarray, predicted: np.ndarray) -> Float[np.ndarray, "K m"]:
    """Correlation of each factor with its prediction from each block; negative ones count as 0."""
    first = truth - truth.mean(0)
    second = predicted - predicted.mean(0)
    products = np.einsum("nk,nmk->km", first, second)
    sizes = np.sqrt(np.square(first).sum(0)[:, None] * np.square(second).sum(0).T)
    return np.clip(products / np.maximum(sizes, 1e-300), 0, 1)
