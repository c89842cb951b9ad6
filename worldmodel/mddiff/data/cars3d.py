"""Cars3D from its .mat files: 4 elevations, 24 azimuths, one object per file in the order of names."""

import hashlib
import io
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.io
from jaxtyping import UInt8
from PIL import Image

from worldmodel.mddiff.data.array_factors import ArrayFactors
from worldmodel.mddiff.data.stored_arrays import write_npy

ELEVATIONS, AZIMUTHS, OBJECTS = 4, 24, 183
SIZE = 64  # pixels; the files hold 128
SUFFIX = ".mat"


def open_cars3d(path: Path, cache: Path) -> ArrayFactors:
    """A folder of car_*_mesh.mat files (at any depth), or the archive nips2015-analogy-data.tar.gz."""
    names, fingerprint = _names(path)
    if not names:
        raise ValueError(f"{path}: expected files cars/car_*_mesh.mat, found none")
    if len(names) != OBJECTS:
        warnings.warn(f"{path}: Cars3D has {OBJECTS} cars, found {len(names)}", stacklevel=2)
    target = cache / f"cars3d_{fingerprint}.npy"
    sizes = (ELEVATIONS, AZIMUTHS, len(names))
    if target.exists():
        pixels = np.load(target, mmap_mode="r")
    else:

        def fill(array: np.ndarray) -> None:
            grid = array.reshape(*sizes, SIZE, SIZE, 3)
            for name, content in _contents(path):
                grid[:, :, names.index(name)] = _pictures(name, content)

        count = ELEVATIONS * AZIMUTHS * len(names)
        pixels = write_npy(target, (count, SIZE, SIZE, 3), np.dtype(np.uint8), fill)
    return ArrayFactors("cars3d", ("elevation", "azimuth", "object"), sizes, pixels)


def _names(path: Path) -> tuple[list[str], str]:
    """Sorted names of the cars (not in directory order), and a digest that identifies this dataset."""
    if path.is_dir():
        entries = [(file.stem, file.stat().st_size) for file in path.rglob(f"car_*{SUFFIX}")]
    else:
        with tarfile.open(path) as archive:
            entries = [(Path(member.name).stem, member.size) for member in archive if _is_car(member.name)]
    entries.sort()
    digest = hashlib.sha256(repr((SIZE, entries, path.stat().st_mtime_ns)).encode()).hexdigest()
    return [name for name, _ in entries], digest[:16]


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in path.rglob(f"car_*{SUFFIX}"):
            yield file.stem, file.read_bytes()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if _is_car(member.name) and (stream := archive.extractfile(member)) is not None:
                yield Path(member.name).stem, stream.read()


def _is_car(name: str) -> bool:
    return Path(name).name.startswith("car_") and name.endswith(SUFFIX)


def _pictures(name: str, content: bytes) -> UInt8[np.ndarray, "elevation azimuth H W 3"]:
    """The images of one car, downsampled with a Lanczos filter as in the reference code."""
    stored = scipy.io.loadmat(io.BytesIO(content))["im"]  # type: ignore[arg-type]  # stubs know paths only
    if stored.dtype != np.uint8 or stored.shape[2:] != (3, AZIMUTHS, ELEVATIONS):
        raise ValueError(
            f"{name}{SUFFIX}: expected im as uint8 [H, W, 3, {AZIMUTHS}, {ELEVATIONS}], "
            f"found {stored.dtype} {stored.shape}"
        )
    pictures = stored.transpose(4, 3, 0, 1, 2).reshape(-1, *stored.shape[:3])
    small = [Image.fromarray(picture).resize((SIZE, SIZE), Image.Resampling.LANCZOS) for picture in pictures]
    return np.stack([np.asarray(picture) for picture in small]).reshape(ELEVATIONS, AZIMUTHS, SIZE, SIZE, 3)
