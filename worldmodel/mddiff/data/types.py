"""Pictures with known factors of variation: what every data set of the concept study offers.

Axes: n pictures, K factors. Samplers pass indices around, not pictures: a picture and its factors are always
asked for by the same index, so that they cannot part company.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt8
from torch import Tensor


@runtime_checkable
class FactorDataset(Protocol):
    """Pictures, each with one value (0 .. size - 1) of every factor; usually every combination once."""

    # Properties, because frozen data sets have no attributes that can be set.
    @property
    def name(self) -> str:
        """For tables and file names."""
        ...

    @property
    def factor_names(self) -> tuple[str, ...]:
        """One per factor."""
        ...

    @property
    def factor_sizes(self) -> tuple[int, ...]:
        """Number of values of each factor."""
        ...

    def __len__(self) -> int: ...

    def images(self, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """RGB pictures in this order; repeats are allowed."""
        ...

    def factors(self, indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
        """Factor values of the same pictures."""
        ...


def is_grid(dataset: FactorDataset) -> bool:
    """Whether the pictures are every combination of factor values in order, the last factor fastest."""
    num_combinations = 1  # a Python integer: many factors would overflow np.prod
    for size in dataset.factor_sizes:
        num_combinations *= size
    if num_combinations != len(dataset):
        return False
    indices = np.arange(len(dataset))
    return bool((grid_index(dataset, dataset.factors(indices)) == indices).all())


def grid_index(dataset: FactorDataset, factors: Int64[np.ndarray, "n K"]) -> Int64[np.ndarray, " n"]:
    """Where these combinations stand in a full grid; only for data sets that are one."""
    sizes = dataset.factor_sizes
    if factors.shape[1] != len(sizes) or (factors < 0).any() or (factors >= np.asarray(sizes)).any():
        raise ValueError(
            f"{dataset.name} has factors of sizes {sizes}, got values {factors[:3].tolist()} ..."
        )
    return np.ravel_multi_index(tuple(factors.T), sizes).astype(np.int64)


def grid_factors(sizes: tuple[int, ...], indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
    """Factor values of the pictures of a full grid."""
    return np.stack(np.unravel_index(indices, sizes), axis=1).astype(np.int64)
