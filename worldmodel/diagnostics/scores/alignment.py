"""A self-test to run before any disentanglement score: are codes and factors in the same order?"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Integer

from worldmodel.diagnostics.scores.dci import dci
from worldmodel.diagnostics.scores.disentanglement import (
    beta_vae_score,
    factor_vae_score,
    irs,
    mig,
    modularity,
    sap,
)
from worldmodel.diagnostics.scores.infomec import infomec

Metric = Callable[[np.ndarray, np.ndarray, int], float]

# Few votes are enough: both sides of the comparison are drawn with the same random numbers.
QUICK: dict[str, Metric] = {
    "factor_vae_score": lambda codes, factors, seed: (
        factor_vae_score(
            codes, factors, seed=seed, num_train=1000, num_eval=500, num_variance=1000, prune_below=1e-6
        ).value
    ),
    "beta_vae_score": lambda codes, factors, seed: (
        beta_vae_score(codes, factors, seed=seed, num_train=1000, num_eval=500).value
    ),
    "mig": lambda codes, factors, seed: mig(codes, factors, seed=seed, num_train=10_000).value,
    "modularity": lambda codes, factors, seed: modularity(codes, factors, seed=seed, num_train=10_000).value,
    "sap": lambda codes, factors, seed: (
        sap(codes, factors, seed=seed, num_train=10_000, continuous=True).value
    ),
    "irs": lambda codes, factors, seed: irs(codes, factors, seed=seed, num_train=10_000).value,
}
# These grow trees or search neighbors: seconds to minutes, depending on the number of classes.
THOROUGH: dict[str, Metric] = {
    "dci": lambda codes, factors, seed: (
        dci(codes, factors, seed=seed, num_train=1000, num_test=500).disentanglement
    ),
    "infomec": lambda codes, factors, seed: (
        infomec(codes, factors, seed=seed, num_train=1000, num_test=500, discrete_codes=True).modularity
    ),
}


def check_alignment(
    received: Integer[np.ndarray, "m num_factors"],
    factors: Integer[np.ndarray, "n num_factors"],
    *,
    seed: int = 0,
    thorough: bool = False,
) -> dict[str, float]:
    """Refuses an evaluation whose codes are not in the order of its factors; returns each metric's ceiling.

    `received[i]` are the factor indices of the image that code i is computed from: send the indices instead
    of the images through the evaluation's own data path (files, loader, repetition, shuffling). Used as
    codes, they must score as well as the factors themselves, in every metric; `thorough` adds DCI and
    InfoMEC, which are slower.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import check_alignment
        >>> factors = np.random.default_rng(0).integers(0, 4, size=(500, 2))
        >>> ceilings = check_alignment(factors, factors)
        >>> ceilings["factor_vae_score"]
        1.0
        >>> check_alignment(np.roll(factors, 1, axis=0), factors)
        Traceback (most recent call last):
        ...
        ValueError: ...
    """
    if received.shape != factors.shape:
        raise ValueError(f"misaligned: {factors.shape} factors, but {received.shape} arrive at the encoder")
    metrics = QUICK | (THOROUGH if thorough else {})
    if min(factors.shape[1], len(factors)) < 2:
        raise ValueError(f"alignment needs at least 2 rows and 2 factors, got {factors.shape}")
    ceiling = {name: metric(factors, factors, seed) for name, metric in metrics.items()}
    reached = {name: metric(received, factors, seed) for name, metric in metrics.items()}
    short = [
        f"{name} {reached[name]:.3f} instead of {ceiling[name]:.3f}"
        for name in metrics
        if reached[name] < ceiling[name] - 1e-9
    ]
    if short:
        raise ValueError(
            "misaligned: the factor indices themselves, sent the way of the images, miss the ceiling ("
            + ", ".join(short)
            + "); codes and factors do not belong to the same images"
        )
    return ceiling
