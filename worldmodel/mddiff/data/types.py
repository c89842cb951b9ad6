"""The interface of image datasets with ground-truth factors of variation.

Axes: n images, K factors. Samplers exchange indices, not images: an image and its factors are always looked
up by the same index, so they cannot get mixed up.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt8
from torch import Tensor


@runtime_checkable
class FactorDataset(Protocol):
    """Images, each with one value (0 .. size - 1) per factor; usually every combination once."""

    # Properties, because attributes of frozen dataclasses cannot be set.
    @property
    def name(self) -> str:
        """Name for tables and file names."""
        ...

    @property
    def factor_names(self) -> tuple[str, ...]:
        """One name per factor."""
        ...

    @property
    def factor_sizes(self) -> tuple[int, ...]:
        """Number of values of each factor."""
        ...

    def __len__(self) -> int: ...

    def images(self, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """RGB images at these indices, in this order; repeats are allowed."""
        ...

    def factors(self, indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
        """Factor values of the same images."""
        ...


def is_grid(dataset: FactorDataset) -> bool:
    """Whether the images are all combinations of factor values in order, the last factor varying fastest."""
    num_combinations = 1  # a Python integer: np.prod would overflow with many factors
    for size in dataset.factor_sizes:
        num_combinations *= size
    if num_combinations != len(dataset):
        return False
    indices = np.arange(len(dataset))
    return bool((grid_index(dataset, dataset.factors(indices)) == indices).all())


def grid_index(dataset: FactorDataset, factors: Int64[np.ndarray, "n K"]) -> Int64[np.ndarray, " n"]:
    """Index of each combination of factor values in a full grid."""
    sizes = dataset.factor_sizes
    if factors.shape[1] != len(sizes) or (factors < 0).any() or (factors >= np.asarray(sizes)).any():
        raise ValueError(
            f"{dataset.name} has factors of sizes {sizes}, got values {factors[:3].tolist()} ..."
        )
    return np.ravel_multi_index(tuple(factors.T), sizes).astype(np.int64)


def grid_factors(sizes: tuple[int, ...], indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
    """Factor values at these indices of a full grid."""
    return np.stack(np.unravel_index(indices, sizes), axis=1).astype(np.int64)
