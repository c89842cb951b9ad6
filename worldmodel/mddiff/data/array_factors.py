"""A dataset whose images are the rows of one array, in memory or memory-mapped."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from worldmodel.mddiff.data.types import grid_factors


@dataclass(frozen=True, eq=False)
class ArrayFactors:
    """Images [n H W] (gray) or [n H W 3] with their factors.

    Without `values`, they form a full grid in order.
    """

    name: str
    factor_names: tuple[str, ...]
    factor_sizes: tuple[int, ...]
    pixels: UInt8[np.ndarray, "n H W"] | UInt8[np.ndarray, "n H W 3"]
    values: Int64[np.ndarray, "n K"] | None = None
    gain: int = 1  # multiplier for stored pixels; 255 for images stored as 0 and 1

    def __post_init__(self) -> None:
        if len(self.factor_names) != len(self.factor_sizes):
            raise ValueError(f"{self.name}: {self.factor_names} have sizes {self.factor_sizes}")
        if self.values is None and int(np.prod(self.factor_sizes)) != len(self.pixels):
            raise ValueError(
                f"{self.name}: factors of sizes {self.factor_sizes} make {np.prod(self.factor_sizes)} "
                f"pictures, found {len(self.pixels)}"
            )
        if self.values is not None:
            self._check_values(self.values)

    def _check_values(self, values: np.ndarray) -> None:
        expected = (len(self.pixels), len(self.factor_sizes))
        if values.shape != expected:
            raise ValueError(f"{self.name}: expected factor values of shape {expected}, found {values.shape}")
        if (values < 0).any() or (values >= np.asarray(self.factor_sizes)).any():
            raise ValueError(
                f"{self.name}: factor values up to {values.max(0).tolist()} "
                f"exceed the sizes {self.factor_sizes}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def images(self, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """RGB images; gray ones are repeated over the three channels."""
        rows = np.asarray(self.pixels[indices])
        rows = rows[..., None].repeat(3, axis=-1) if rows.ndim == 3 else rows
        picked = torch.from_numpy(np.ascontiguousarray(np.moveaxis(rows, -1, 1)))
        return picked if self.gain == 1 else picked * self.gain

    def factors(self, indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
        """Factor values of the same rows."""
        if self.values is None:
            return grid_factors(self.factor_sizes, indices)
        return self.values[indices]
