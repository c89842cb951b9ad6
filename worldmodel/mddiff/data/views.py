"""Views of a dataset: fewer factor values, or smaller images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from jaxtyping import Int64, UInt8
from torch import Tensor

from worldmodel.mddiff.data.types import FactorDataset, grid_factors, grid_index, is_grid

# Cyclic factors, whose last value is a neighbor of the first: hues of Rooms and Shapes3D, azimuth of Cars3D.
# The orientation of dSprites is cyclic as well (0 to 360 degrees); other orientations span 30 degrees.
CIRCULAR = ("floor_hue", "wall_hue", "object_hue", "azimuth")


@dataclass(frozen=True, eq=False)
class SubGrid:
    """All combinations of a subset of every factor's values: a full grid again."""

    name: str
    factor_names: tuple[str, ...]
    factor_sizes: tuple[int, ...]
    base: FactorDataset
    kept: tuple[Int64[np.ndarray, " _"], ...]  # per factor: the kept values, as indices in the whole dataset

    def __len__(self) -> int:
        return int(np.prod(self.factor_sizes))

    def images(self, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """Images at these indices of the smaller grid."""
        values = self.factors(indices)
        whole = np.stack([kept[column] for kept, column in zip(self.kept, values.T, strict=True)], axis=1)
        return self.base.images(grid_index(self.base, whole))

    def factors(self, indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
        """Factor values renumbered among the kept ones: 0 .. size - 1."""
        return grid_factors(self.factor_sizes, indices)


def sub_grid(dataset: FactorDataset, counts: Sequence[int]) -> FactorDataset:
    """Keep that many evenly spaced values of each factor; () keeps all.

    The first and last values are kept; for a cyclic factor only the first.
    """
    if not counts:
        return dataset
    if len(counts) != len(dataset.factor_sizes):
        raise ValueError(
            f"{dataset.name} needs one count per factor ({', '.join(dataset.factor_names)}), "
            f"got {list(counts)}"
        )
    if not is_grid(dataset):
        raise ValueError(f"{dataset.name} is no full grid of its factors, so it has no sub-grid")
    kept = []
    for name, size, count in zip(dataset.factor_names, dataset.factor_sizes, counts, strict=True):
        if not 1 <= count <= size:
            raise ValueError(f"{dataset.name}: {name} has {size} values, {count} cannot be kept")
        is_circular = name in CIRCULAR or (name == "orientation" and "pos_x" in dataset.factor_names)
        end = size if is_circular else size - 1
        kept.append(np.linspace(0, end, count, endpoint=not is_circular).round().astype(np.int64))
    sizes = tuple(len(values) for values in kept)
    title = f"{dataset.name}_" + "x".join(str(size) for size in sizes)
    return SubGrid(title, dataset.factor_names, sizes, dataset, tuple(kept))


@dataclass(frozen=True, eq=False)
class Shrunk:
    """The same images, downsampled by averaging `cell` x `cell` pixels."""

    name: str
    factor_names: tuple[str, ...]
    factor_sizes: tuple[int, ...]
    base: FactorDataset
    cell: int

    def __len__(self) -> int:
        return len(self.base)

    def images(self, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """The downsampled images."""
        return F.avg_pool2d(self.base.images(indices).float(), self.cell).round().byte()

    def factors(self, indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
        """Factor values, unchanged."""
        return self.base.factors(indices)


def shrunk(dataset: FactorDataset, size: int) -> FactorDataset:
    """Downsample images to `size` x `size` pixels; the stored size must be a multiple of it."""
    height, width = dataset.images(np.zeros(1, np.int64)).shape[-2:]
    if height != width or size < 1 or height % size:
        raise ValueError(f"{dataset.name} has pictures of {height}x{width}, which do not divide by {size}")
    if height == size:
        return dataset
    names, sizes = dataset.factor_names, dataset.factor_sizes
    return Shrunk(f"{dataset.name}_{size}px", names, sizes, dataset, height // size)
