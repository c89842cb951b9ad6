"""Mean correlation coefficient between true and estimated latents, with an interval."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Num

from worldmodel.diagnostics.identifiability.correlation import Kind, MatchedCorrelation, matched_correlation
from worldmodel.report.intervals import Interval, jackknife_interval


@dataclass(frozen=True)
class Mcc:
    """Mean |correlation| of each true latent with the estimated latent matched to it."""

    value: float
    interval: Interval  # 95 %, by leaving out a tenth of the samples at a time
    num_samples: int  # samples that were scored
    per_factor: Float[np.ndarray, " d"]  # 0 where a true latent has no partner
    assignment: Int[np.ndarray, " d"]  # index of the partner, -1 without one


def mcc(
    true: Num[np.ndarray, "n d"],
    estimated: Num[np.ndarray, "n k"],
    *,
    kind: Kind = "pearson",
    matching_share: float = 0.0,
) -> Mcc:
    """Matches columns one to one by the largest total |correlation| and averages the matched entries.

    `kind="spearman"` is invariant to monotone distortions. `matching_share` > 0 finds the matching on the
    first share of the samples and scores the others (out of sample). Unrelated latents score above 0, about
    sqrt(log d / n): compare with the score of shuffled rows.

    `MCC = 1/d max over matchings p of sum_i |corr(z_i, z_hat_p(i))|`

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import mcc
        >>> true = np.random.default_rng(0).normal(size=(1000, 3))
        >>> result = mcc(true, -2 * true[:, [2, 0, 1]])  # order, sign and scale do not matter
        >>> round(result.value, 3), result.assignment.tolist()
        (1.0, [1, 2, 0])

    References:
        "Unsupervised Feature Extraction by Time-Contrastive Learning and Nonlinear ICA", 2016.
    """
    if len(true) != len(estimated) or len(true) < 2:
        raise ValueError(
            f"as many rows in both, at least 2, are needed: got {true.shape} and {estimated.shape}"
        )
    arrays = [torch.from_numpy(np.ascontiguousarray(part, dtype=np.float64)) for part in (true, estimated)]

    def match(keep: np.ndarray) -> MatchedCorrelation:
        rows = torch.from_numpy(keep)
        return matched_correlation(*(part[rows] for part in arrays), kind=kind, matching_share=matching_share)

    whole = match(np.ones(len(true), dtype=bool))
    value = float(whole.mean)
    interval = jackknife_interval(value, lambda keep: float(match(keep).mean), len(true))
    return Mcc(value, interval, whole.num_samples, whole.per_factor, whole.assignment)
