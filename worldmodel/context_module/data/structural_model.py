"""Linear Gaussian structural causal models with do-interventions."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from worldmodel.context_module.data.types import Do


@dataclass(frozen=True)
class Intervention:
    """do(x = N(mean, std^2)): x no longer depends on its parents."""

    mean: float
    std: float


@dataclass(frozen=True, eq=False)
class StructuralModel:
    """x_j = sum_k weights[j, k] x_k + noise_j; k < j for every nonzero weight.

    Noise is scaled so that every x_j has variance 1 in the observational context.

    Example:
        >>> chain = StructuralModel(np.array([[0, 0], [0.6, 0]]), {0: Intervention(3.0, 0.5)})
        >>> chain.sample((), rng.standard_normal((1000, 2)))  # correlation 0.6
        >>> chain.sample((0,), rng.standard_normal((1000, 2)))  # means 3 and 1.8
    """

    weights: Float[np.ndarray, "K K"]
    interventions: Mapping[int, Intervention]

    def __post_init__(self) -> None:
        if np.triu(self.weights).any():
            raise ValueError("weights must be strictly lower triangular: parents come before children")
        self.noise_std  # noqa: B018  a model without such noise is refused now

    @property
    def noise_std(self) -> Float[np.ndarray, " K"]:
        """Standard deviation of each noise."""
        count = len(self.weights)
        covariance, std = np.zeros((count, count)), np.ones(count)
        for child in range(count):
            row = self.weights[child, :child]
            explained = row @ covariance[:child, :child] @ row
            if explained >= 1:
                raise ValueError(f"variable {child}: its parents explain {explained:.2f} of a variance of 1")
            std[child] = (1 - explained) ** 0.5
            covariance[child, :child] = covariance[:child, child] = row @ covariance[:child, :child]
            covariance[child, child] = 1
        return std

    def sample(self, do: Do, noise: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """One row of variables per row of standard normal noise."""
        std, values = self.noise_std, np.empty_like(noise)
        for child in range(len(std)):
            if child in do:
                change = self.interventions[child]
                values[:, child] = change.mean + change.std * noise[:, child]
            else:
                values[:, child] = (
                    values[:, :child] @ self.weights[child, :child] + std[child] * noise[:, child]
                )
        return values
