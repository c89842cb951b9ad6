"""Shapes3D, MPI3D and dSprites, read from the files that their authors publish; for Cars3D see cars3d.py."""

from pathlib import Path

import numpy as np

from worldmodel.mddiff.data.array_factors import ArrayFactors
from worldmodel.mddiff.data.stored_arrays import Published, check_published, is_hdf5, keys, read_array
from worldmodel.mddiff.data.types import grid_factors

PUBLISHED = (
    Published(
        "3dshapes.h5",
        267_573_662,
        "sha256",
        "0a0f6ed98baff276a50f3a081a7434d788da63cb135a98189b2a5b5769be1785",
    ),
    Published("mpi3d_toy.npz", 12_740_198_762, "md5", "55889cb7c7dfc655d6e0277beee88868"),
    Published("mpi3d_realistic.npz", 12_740_198_762, "md5", "59a6225b88b635365f70c91b3e52f70f"),
)
SHAPES3D = {
    "floor_hue": np.arange(10) / 10,
    "wall_hue": np.arange(10) / 10,
    "object_hue": np.arange(10) / 10,
    "scale": np.linspace(0.75, 1.25, 8),
    "shape": np.arange(4.0),
    "orientation": np.linspace(-30, 30, 15),  # degrees
}
MPI3D_NAMES = (
    "object_color",
    "object_shape",
    "object_size",
    "camera_height",
    "background_color",
    "horizontal_axis",
    "vertical_axis",
)
MPI3D_REST = (2, 3, 3, 40, 40)  # sizes after colors and shapes, whose number depends on the release
DSPRITES = {"shape": 3, "scale": 6, "orientation": 40, "pos_x": 32, "pos_y": 32}


def open_shapes3d(path: Path, cache: Path) -> ArrayFactors:
    """Read 3dshapes.h5, or an .npz with `images` as a flat list or as the nine-dimensional grid."""
    check_published(path, PUBLISHED, cache)
    images, names = read_array(path, "images", cache), tuple(SHAPES3D)
    sizes = tuple(len(values) for values in SHAPES3D.values())
    if images.ndim == 9:
        sizes, images = images.shape[:6], images.reshape(-1, *images.shape[6:])
    _check_pictures(path, images, channels=3)
    if "labels" not in keys(path):
        return ArrayFactors("shapes3d", names, sizes, images)
    values = _nearest(path, read_array(path, "labels", cache))
    return ArrayFactors("shapes3d", names, sizes, images, _unless_grid(values, sizes))


def open_mpi3d(path: Path, cache: Path) -> ArrayFactors:
    """Read mpi3d_*.npz: 6 colors and 6 shapes in the full releases, 4 and 4 in earlier and complex ones."""
    check_published(path, PUBLISHED, cache)
    images = read_array(path, "images", cache)
    _check_pictures(path, images, channels=3)
    for count in (6, 4):
        sizes = (count, count, *MPI3D_REST)
        if len(images) == np.prod(sizes):
            return ArrayFactors(path.stem, MPI3D_NAMES, sizes, images)
    raise ValueError(
        f"{path}: MPI3D has 1036800 pictures (6 colors, 6 shapes) or 460800 (4 and 4), found {len(images)}"
    )


def open_dsprites(path: Path, cache: Path) -> ArrayFactors:
    """Read dSprites (.npz or HDF5): all of it, a grid over some of its factor values, or any subset.

    The factor `color` has a single value and is dropped. Factor values of a partial grid are renumbered from
    0.
    """
    classes_key = "latents/classes" if is_hdf5(path) else "latents_classes"
    classes = read_array(path, classes_key, cache).astype(np.int64)[:, -len(DSPRITES) :]
    images = read_array(path, "imgs", cache)
    _check_pictures(path, images, channels=0)
    found = tuple(int(size) for size in classes.max(0) + 1)
    is_grid = (
        np.prod(found) == len(classes) and (classes == grid_factors(found, np.arange(len(classes)))).all()
    )
    sizes = found if is_grid else tuple(DSPRITES.values())
    name = "dsprites" if sizes == tuple(DSPRITES.values()) and is_grid else path.stem
    return ArrayFactors(name, tuple(DSPRITES), sizes, images, None if is_grid else classes, gain=255)


def _nearest(path: Path, labels: np.ndarray) -> np.ndarray:
    """Index of each label among the values of its factor."""
    if labels.ndim != 2 or labels.shape[1] != len(SHAPES3D):
        raise ValueError(f"{path}: expected labels of {len(SHAPES3D)} factors, found shape {labels.shape}")
    columns = []
    for (name, grid), column in zip(SHAPES3D.items(), labels.T, strict=True):
        index = np.abs(column[:, None] - grid).argmin(1)
        if (np.abs(grid[index] - column) > 1e-3 * np.ptp(grid)).any():
            raise ValueError(
                f"{path}: labels of {name} are {np.round(grid, 3).tolist()}, found {column[:3]} ..."
            )
        columns.append(index)
    return np.stack(columns, axis=1).astype(np.int64)


def _unless_grid(values: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray | None:
    if len(values) == np.prod(sizes) and (values == grid_factors(sizes, np.arange(len(values)))).all():
        return None
    return values


def _check_pictures(path: Path, images: np.ndarray, channels: int) -> None:
    is_right = images.dtype == np.uint8 and images.ndim == (4 if channels else 3)
    if not is_right or (channels and images.shape[-1] != channels):
        expected = f"[n, H, W, {channels}]" if channels else "[n, H, W]"
        raise ValueError(f"{path}: expected uint8 pictures {expected}, found {images.dtype} {images.shape}")
