"""InfoMEC: modularity, explicitness and compactness from mutual information and linear prediction."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer, Num
from sklearn.feature_selection import mutual_info_classif
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from worldmodel.diagnostics.scores.factor_sampling import check_counts, factor_table
from worldmodel.diagnostics.scores.information import entropies, mutual_information
from worldmodel.report.intervals import Interval, mean_interval


@dataclass(frozen=True)
class InfoMec:
    """Each score runs from 0 (chance) to 1; `information` is normalized by the entropy of the factor."""

    modularity: float  # each code informs about one factor
    explicitness: float  # factors are linearly predictable from the codes
    compactness: float  # each factor is encoded by one code
    interval: Interval  # 95 % interval of modularity, over codes
    information: Float[np.ndarray, "d num_factors"]
    num_active: int
    num_samples: int


def infomec(
    codes: Num[np.ndarray, "n d"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    num_train: int = 10_000,
    num_test: int = 5_000,
    prune_below: float = 0.05,
    discrete_codes: bool = False,
) -> InfoMec:
    """InfoM, InfoE and InfoC.

    Mutual information with continuous codes is the nearest-neighbor estimate, otherwise the plug-in estimate.
    Rows are drawn without replacement, since a repeated row is its own nearest neighbor; a table with fewer
    rows than requested is split two to one. Codes whose range is below `prune_below` of the largest count as
    unused.

    With I normalized mutual information, InfoM is the mean over codes and InfoC the mean over factors of
    `(max I / sum I - 1 / m) / (1 - 1 / m)`, where m is the number of terms in the sum. InfoE is the
    normalized gain in log likelihood of a linear classifier.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import infomec
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(2000, 2))
        >>> codes = factors.astype(float)  # perfect codes: one per factor
        >>> result = infomec(codes, factors, num_train=1000, num_test=500, discrete_codes=True)
        >>> result.modularity > 0.9, result.compactness > 0.9
        (True, True)

    References:
        "Disentanglement via Latent Quantization", 2023.
    """
    table = factor_table(codes, factors)
    num_train = min(num_train, 2 * len(codes) // 3)
    num_test = min(num_test, len(codes) - num_train)
    check_counts(num_train=num_train, num_test=num_test)
    rows = np.random.RandomState(seed).permutation(len(codes))[: num_train + num_test]
    points, values = table.codes[rows], table.factors[rows]
    train, test = (points[:num_train], values[:num_train]), (points[num_train:], values[num_train:])
    reach = np.ptp(train[0], axis=0)
    active = np.flatnonzero(reach > prune_below * reach.max())
    if len(active) == 0:
        return InfoMec(0.0, 0.0, 0.0, (0.0, 0.0), np.zeros((0, len(table.sizes))), 0, num_train)
    information = _normalized_information(train[0][:, active], train[1], discrete_codes, seed)
    per_code = share_of_largest(information, axis=1)
    explicit = [
        _explicitness(train[0][:, active], train[1][:, k], test[0][:, active], test[1][:, k])
        for k, size in enumerate(table.sizes)
        if size > 1
    ]
    return InfoMec(
        float(per_code.mean()),
        float(np.mean(explicit)),
        float(share_of_largest(information, axis=0).mean()),
        mean_interval(per_code),
        information,
        len(active),
        num_train,
    )


def share_of_largest(
    information: Float[np.ndarray, "d num_factors"], axis: int
) -> Float[np.ndarray, " items"]:
    """Largest entry over the sum along `axis`, rescaled: an even spread is 0 and a single entry is 1."""
    count = information.shape[axis]
    if count == 1:
        return np.ones(information.shape[1 - axis])
    total = information.sum(axis)
    share = np.divide(information.max(axis), total, out=np.full_like(total, 1 / count), where=total > 0)
    return (share - 1 / count) / (1 - 1 / count)


def _normalized_information(
    points: np.ndarray, values: np.ndarray, discrete_codes: bool, seed: int
) -> Float[np.ndarray, "d num_factors"]:
    entropy = entropies(values)
    if discrete_codes:
        information = mutual_information(points, values)
    else:
        columns = [mutual_info_classif(points, value, random_state=seed) for value in values.T]
        information = np.stack(columns, axis=1)
    return np.divide(information, entropy, out=np.zeros_like(information), where=entropy > 0)


def _explicitness(x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
    """Share of the factor's entropy that a logistic regression removes, on test points."""
    scaler = StandardScaler().fit(x_train)
    model = LogisticRegression(C=100.0, max_iter=300).fit(scaler.transform(x_train), y_train)
    known = np.isin(y_test, model.classes_)
    predicted = model.predict_proba(scaler.transform(x_test[known]))
    frequency = np.array([(y_train == label).mean() for label in model.classes_])
    null = log_loss(y_test[known], np.tile(frequency, (int(known.sum()), 1)), labels=model.classes_)
    return float(np.clip(1.0 - log_loss(y_test[known], predicted, labels=model.classes_) / null, 0.0, 1.0))
