"""Rooms: a dataset like Shapes3D that this project renders itself, so that studies run without any download.

Hue factors only recolor: an image is the sum over the three surfaces (floor, walls, object) of the surface's
brightness in each pixel times its color. 480 such brightness maps give all 480,000 images.
"""

import colorsys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8, UInt16
from safetensors.numpy import load_file
from torch import Tensor

from worldmodel.mddiff.data.types import grid_factors

FACTOR_NAMES = ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation")
FACTOR_SIZES = (10, 10, 10, 8, 4, 15)
SHAPES = ("cube", "cylinder", "sphere", "capsule")
SURFACES = ("floor", "wall", "object")
FULL = 1020  # stored brightness of a fully lit surface: four samples of 255
SATURATION, VALUE = 0.85, 0.95


def palette(num_hues: int = 10) -> Float32[np.ndarray, "hue 3"]:
    """RGB in 0..255 of evenly spaced hues."""
    colors = [colorsys.hsv_to_rgb(hue / num_hues, SATURATION, VALUE) for hue in range(num_hues)]
    return (255 * np.asarray(colors)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Rooms:
    """Every coloring of the rendered brightness maps."""

    maps: UInt16[
        np.ndarray, "geometry surface H W"
    ]  # in units of 1 / FULL; geometry = scale, shape, orientation
    name: str = "rooms"
    factor_names: tuple[str, ...] = FACTOR_NAMES
    factor_sizes: tuple[int, ...] = FACTOR_SIZES

    def __len__(self) -> int:
        return int(np.prod(self.factor_sizes))

    def images(self, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """Brightness of each surface times its color, summed."""
        values = self.factors(indices)
        geometry = np.ravel_multi_index(tuple(values[:, 3:].T), self.factor_sizes[3:])
        maps = torch.from_numpy(self.maps[geometry].astype(np.float32))
        colors = torch.from_numpy(palette()[values[:, :3]] / FULL)
        return torch.einsum("nshw,nsc->nchw", maps, colors).add_(0.5).byte().contiguous()

    def factors(self, indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n K"]:
        """Values of hues, scale, shape and orientation."""
        return grid_factors(self.factor_sizes, indices)


def open_rooms(path: Path) -> Rooms:
    """Open the brightness maps that `worldmodel.mddiff.data.render_rooms` wrote."""
    maps = load_file(path).get("maps")
    num_geometries = int(np.prod(FACTOR_SIZES[3:]))
    if maps is None or maps.dtype != np.uint16 or maps.shape[:2] != (num_geometries, len(SURFACES)):
        found = "none" if maps is None else f"{maps.dtype} {maps.shape}"
        raise ValueError(
            f"{path}: expected uint16 maps [{num_geometries}, {len(SURFACES)}, H, W], found {found}"
        )
    return Rooms(maps)
