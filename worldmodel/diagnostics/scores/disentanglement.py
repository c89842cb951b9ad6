"""Disentanglement scores on plain arrays: codes [n, d] and integer factors [n, K].

Defaults are the reference library's definitions and sample counts, so that numbers are comparable with
published ones; variants used elsewhere are named options. `dci` and `infomec` have files of their own.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Integer, Num
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from worldmodel.diagnostics.scores.factor_sampling import (
    FactorTable,
    check_counts,
    factor_table,
    fixed_factor_pairs,
    fixed_factor_votes,
    sample_points,
    varied_factor_votes,
)
from worldmodel.diagnostics.scores.information import entropies, equal_width_bins, mutual_information
from worldmodel.report.intervals import Interval, jackknife_interval, mean_interval, wilson_interval

VARIANCE_CHUNK = 128  # groups processed at once: their codes fit into the cache while variances are computed


@dataclass(frozen=True)
class Score:
    """A score, its 95 % interval, and the number of samples."""

    value: float
    interval: Interval
    num_samples: int


@dataclass(frozen=True)
class VoteScore(Score):
    """Accuracy of a classifier of factors: `value` on new votes, `train` on those it was fitted to."""

    train: float
    num_active: int  # code dimensions that were not pruned


@dataclass(frozen=True)
class TableScore(Score):
    """A score from a table of codes x factors, with its values per factor or code."""

    table: Float[np.ndarray, "d num_factors"]
    per_item: Float[np.ndarray, " items"]  # per factor for gaps (MIG, SAP), per code otherwise


def factor_vae_score(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = 10_000,
    num_eval: int = 5_000,
    num_variance: int = 10_000,
    group: int = 64,
    prune_below: float = 0.05,
    groups: Literal["fixed", "varied"] = "fixed",
) -> VoteScore:
    """Accuracy of a majority vote from the least varying code to the factor that was held fixed.

    `groups="varied"` is the other published variant: only the named factor varies, and the vote is for the
    code that varies most. `prune_below` is the standard deviation below which a code counts as dead. A
    rotation of the factors scores almost 1 here: read it together with `mig` or `dci`.

    With s_j the standard deviation of code j over the data, each vote is `argmin_j Var(group)_j / s_j^2`. The
    score is the share of votes that name the right factor.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import factor_vae_score
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> factor_vae_score(codes, factors, num_train=500, num_eval=500).value
        1.0

    References:
        "Disentangling by Factorizing", 2018.
    """
    check_counts(num_train=num_train, num_eval=num_eval, num_variance=num_variance)
    table = factor_table(codes, factors)
    rng = np.random.RandomState(seed)
    sampled, _ = sample_points(table, num_variance, rng, batch=num_variance)
    variance = np.var(sampled, axis=0, ddof=1)
    active = np.flatnonzero((np.sqrt(variance) >= prune_below) & (variance > 0))
    if len(active) == 0:
        return VoteScore(0.0, (0.0, 0.0), num_eval, train=0.0, num_active=0)
    make_votes = fixed_factor_votes if groups == "fixed" else varied_factor_votes
    active_codes = np.ascontiguousarray(table.codes[:, active])
    factor, winner = [], []
    for votes in make_votes(table, num_train + num_eval, group, rng):
        spread = _group_variance(active_codes, votes.rows) / variance[active]
        winner.append(spread.argmin(1) if groups == "fixed" else spread.argmax(1))
        factor.append(votes.factor)
    counts = np.zeros((2, len(table.sizes), len(active)), dtype=np.int64)
    is_eval = (np.arange(num_train + num_eval) >= num_train).astype(np.int64)
    np.add.at(counts, (is_eval, np.concatenate(factor), np.concatenate(winner)), 1)
    hits = int(counts[1][counts[0].argmax(0), np.arange(len(active))].sum())
    train = float(counts[0].max(0).sum() / num_train)
    return VoteScore(hits / num_eval, wilson_interval(hits, num_eval), num_eval, train, len(active))


def beta_vae_score(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = 10_000,
    num_eval: int = 5_000,
    group: int = 64,
) -> VoteScore:
    """Accuracy of a logistic regression from mean |z1 - z2| over pairs to the factor the pairs share.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import beta_vae_score
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> beta_vae_score(codes, factors, num_train=500, num_eval=500).value
        1.0

    References:
        "beta-VAE: Learning Basic Visual Concepts with a Constrained Variational Framework", 2017.
    """
    check_counts(num_train=num_train, num_eval=num_eval)
    table = factor_table(codes, factors)
    features, labels = _pair_features(table, num_train + num_eval, group, np.random.RandomState(seed))
    classifier = LogisticRegression().fit(features[:num_train], labels[:num_train])
    is_hit = classifier.predict(features) == labels
    hits, num_codes = int(is_hit[num_train:].sum()), table.codes.shape[1]
    interval = wilson_interval(hits, num_eval)
    return VoteScore(hits / num_eval, interval, num_eval, float(is_hit[:num_train].mean()), num_codes)


def mig(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = 10_000,
    num_bins: int | None = 20,
) -> TableScore:
    """Mutual information gap: (best - second best code) / entropy of the factor, averaged over factors.

    A factor with more values than `num_bins` cannot reach 1 even with a perfect code; None uses codes without
    binning (for codes that are already discrete). The table holds mutual information in nats.

    `MIG = mean_k (I(best code; v_k) - I(second best code; v_k)) / H(v_k)`

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import mig
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> round(mig(codes, factors, num_train=2000).value, 1)
        1.0

    References:
        "Isolating Sources of Disentanglement in Variational Autoencoders", 2018.
    """
    points, values = _points_for_gaps(codes, factors, num_train, seed)

    def gaps_and_table(keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        information = mutual_information(_discrete(points[keep], num_bins), values[keep])
        best, entropy = np.sort(information, axis=0)[::-1], entropies(values[keep])
        # A factor with a single value has zero entropy.
        gaps = np.divide(best[0] - best[1], entropy, out=np.zeros_like(entropy), where=entropy > 0)
        return gaps, information

    gaps, information = gaps_and_table(np.ones(num_train, dtype=bool))
    value = float(gaps.mean())
    interval = jackknife_interval(value, lambda keep: float(gaps_and_table(keep)[0].mean()), num_train)
    return TableScore(value, interval, num_train, information, gaps)


def modularity(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = 10_000,
    num_bins: int | None = 20,
) -> TableScore:
    """How nearly each code is informative about one factor only; a code about nothing counts as 0.

    `modularity = mean_j (1 - sum_{k != best} I_jk^2 / ((K - 1) I_j,best^2))`

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import modularity
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> round(modularity(codes, factors, num_train=2000).value, 1)
        1.0

    References:
        "Learning Deep Disentangled Embeddings with the F-Statistic Loss", 2018.
    """
    check_counts(num_train=num_train)
    points, values = sample_points(factor_table(codes, factors), num_train, np.random.RandomState(seed))

    def information(keep: np.ndarray) -> np.ndarray:
        return mutual_information(_discrete(points[keep], num_bins), values[keep])

    table = information(np.ones(num_train, dtype=bool))
    per_code = modularity_of(table)
    value = float(per_code.mean())
    interval = jackknife_interval(
        value, lambda keep: float(modularity_of(information(keep)).mean()), num_train
    )
    return TableScore(value, interval, num_train, table, per_code)


def modularity_of(information: Float[np.ndarray, "d num_factors"]) -> Float[np.ndarray, " d"]:
    """1 - (squared information about all other factors) / (the most it could be), per code."""
    squared = np.square(information)
    best = squared.max(1)
    most = best * max(squared.shape[1] - 1, 1)
    others = np.divide(squared.sum(1) - best, most, out=np.ones_like(best), where=most > 0)
    return 1.0 - others


def sap(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = 10_000,
    num_eval: int = 5_000,
    continuous: bool = False,
) -> TableScore:
    """Separated attribute predictability: gap between the two best single codes for each factor.

    A code predicts a discrete factor by a balanced linear SVM (C = 0.01), scored by accuracy on test points;
    with `continuous`, by squared correlation on the training points. The interval is over factors.

    `SAP = mean_k (score of the best code for v_k - score of the second best)`

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import sap
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> score = sap(codes, factors, num_train=1000, num_eval=500, continuous=True)
        >>> score.value > 0.9
        True

    References:
        "Variational Inference of Disentangled Latent Concepts from Unlabeled Observations", 2018.
    """
    check_counts(num_train=num_train, num_eval=num_eval)
    table = factor_table(codes, factors)
    _need_two_codes(table)
    rng = np.random.RandomState(seed)
    train = sample_points(table, num_train, rng)
    test = sample_points(table, num_eval, rng)
    scores = _squared_correlation(*train) if continuous else _svm_accuracy(train, test, seed)
    best = np.sort(scores, axis=0)[::-1]
    gaps = best[0] - best[1]
    num_samples = num_train if continuous else num_eval
    return TableScore(float(gaps.mean()), mean_interval(gaps), num_samples, scores, gaps)


def irs(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = 10_000,
    quantile: float = 0.99,
) -> TableScore:
    """Interventional robustness: how little a code moves while its best factor is held fixed.

    Constant codes are left out; the others count by the largest deviation from their mean.

    `IRS_j = 1 - mean over values of v of (quantile of |z_j - mean of z_j given v|) / max |z_j - mean of z_j|`

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import irs
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> irs(codes, factors, num_train=2000).value
        1.0

    References:
        "Robustly Disentangled Causal Mechanisms: Validating Deep Representations for Interventional
        Robustness", 2019.
    """
    check_counts(num_train=num_train)
    points, values = sample_points(factor_table(codes, factors), num_train, np.random.RandomState(seed))
    points = points[:, points.min(0) != points.max(0)]
    if points.shape[1] == 0:
        return TableScore(0.0, (0.0, 0.0), num_train, np.zeros((0, values.shape[1])), np.zeros(0))

    def score(keep: np.ndarray) -> float:
        robustness, reach = _robustness(points[keep], values[keep], quantile)
        return float(np.average(robustness.max(1), weights=reach)) if reach.any() else 0.0

    robustness, _ = _robustness(points, values, quantile)
    value = score(np.ones(num_train, dtype=bool))
    interval = jackknife_interval(value, score, num_train)
    return TableScore(value, interval, num_train, robustness, robustness.max(1))


def _group_variance(
    codes: Float[np.ndarray, "n d"], rows: Integer[np.ndarray, "group votes"]
) -> Float[np.ndarray, "votes d"]:
    """Variance of each code inside each group, bit for bit as np.var(codes[group], axis=0, ddof=1)."""
    group, num_votes = rows.shape
    parts = []
    for start in range(0, num_votes, VARIANCE_CHUNK):
        points = codes.take(rows[:, start : start + VARIANCE_CHUNK], axis=0)
        points -= points.sum(0) / codes.dtype.type(group)
        np.square(points, out=points)
        parts.append(points.sum(0) / codes.dtype.type(group - 1))
    return np.concatenate(parts)


def _pair_features(
    table: FactorTable, num_votes: int, group: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    features, labels = [], []
    for pairs in fixed_factor_pairs(table, num_votes, group, rng):
        distance = np.abs(table.codes[pairs.first] - table.codes[pairs.second])
        features.append(distance.mean(1))
        labels.append(pairs.factor)
    return np.concatenate(features), np.concatenate(labels)


def _points_for_gaps(
    codes: np.ndarray, factors: np.ndarray, num_train: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    check_counts(num_train=num_train)
    table = factor_table(codes, factors)
    _need_two_codes(table)
    return sample_points(table, num_train, np.random.RandomState(seed))


def _need_two_codes(table: FactorTable) -> None:
    if table.codes.shape[1] < 2:
        raise ValueError("a gap between codes needs at least 2 code dimensions, got 1")


def _discrete(points: np.ndarray, num_bins: int | None) -> np.ndarray:
    return points if num_bins is None else equal_width_bins(points, num_bins)


def _squared_correlation(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    num_codes = points.shape[1]
    covariance = np.cov(points.T.astype(np.float64), values.T.astype(np.float64))
    variance = np.diag(covariance)
    product = np.outer(variance[:num_codes], variance[num_codes:])
    squared = np.square(covariance[:num_codes, num_codes:])
    # Codes with a variance below 1e-12 count as dead, as in the reference.
    alive = (variance[:num_codes, None] > 1e-12) & (product > 0)
    return np.divide(squared, product, out=np.zeros_like(squared), where=alive)


def _svm_accuracy(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], seed: int
) -> np.ndarray:
    scores = np.zeros((train[0].shape[1], train[1].shape[1]))
    for code, factor in np.ndindex(*scores.shape):
        labels = train[1][:, factor]
        if labels.min() == labels.max():  # a factor with one value needs no code
            scores[code, factor] = (test[1][:, factor] == labels[0]).mean()
            continue
        classifier = LinearSVC(C=0.01, class_weight="balanced", random_state=seed)
        classifier.fit(train[0][:, code, None], labels)
        scores[code, factor] = classifier.score(test[0][:, code, None], test[1][:, factor])
    return scores


def _robustness(points: np.ndarray, values: np.ndarray, quantile: float) -> tuple[np.ndarray, np.ndarray]:
    deviations = np.zeros((points.shape[1], values.shape[1]))
    for factor, column in enumerate(values.T):
        present = np.unique(column)
        for value in present:
            group = points[column == value]
            moved = np.abs(group - group.mean(0))
            deviations[:, factor] += np.percentile(moved, 100 * quantile, axis=0) / len(present)
    reach = np.abs(points - points.mean(0)).max(0)
    return 1.0 - deviations / reach[:, None], reach
