"""Arrays inside .npz and HDF5 files: small ones are read into memory, large ones are memory-mapped.

A large compressed array is unpacked once into the cache folder, under a name derived from its content; an
array that its .npz stores uncompressed (MPI3D) is mapped in place.
"""

import hashlib
import math
import shutil
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from worldmodel.files import atomic_file

IN_MEMORY = 1 << 30  # bytes; larger arrays are mapped
ROWS = 4096  # rows copied at a time


@dataclass(frozen=True)
class Published:
    """Name, size and digest of a file as its authors publish it."""

    name: str
    num_bytes: int
    algorithm: str
    digest: str


def is_hdf5(path: Path) -> bool:
    """Whether the file name has an HDF5 suffix."""
    return path.suffix in (".h5", ".hdf5")


def check_published(path: Path, known: tuple[Published, ...], cache: Path) -> None:
    """Raise ValueError if a file with a published name and size has another digest; checked once per file."""
    for file in known:
        if (path.name, path.stat().st_size) != (file.name, file.num_bytes):
            continue
        mark = cache / f"{path.name}_{path.stat().st_mtime_ns}.checked"
        if mark.exists():
            return
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, file.algorithm).hexdigest()
        if found != file.digest:
            raise ValueError(f"{path} is damaged: expected {file.algorithm} {file.digest}, found {found}")
        cache.mkdir(parents=True, exist_ok=True)
        mark.touch()


def keys(path: Path) -> set[str]:
    """Names of the arrays in the file."""
    if is_hdf5(path):
        found: set[str] = set()
        with _open_hdf5(path) as file:
            file.visititems(lambda name, entry: found.add(name) if isinstance(entry, h5py.Dataset) else None)
        return found
    with _open_zip(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def read_array(path: Path, key: str, cache: Path) -> np.ndarray:
    """The array `key`, in memory or as a read-only memory map."""
    if key not in keys(path):
        raise ValueError(f"{path}: expected an array {key!r}, found {', '.join(sorted(keys(path)))}")
    return _from_hdf5(path, key, cache) if is_hdf5(path) else _from_npz(path, key, cache)


def write_npy(target: Path, shape: tuple[int, ...], dtype: np.dtype, fill: Any) -> np.ndarray:
    """Create a .npy file that `fill(array)` writes into, atomically; returns it memory-mapped, read-only."""
    with atomic_file(target) as temporary:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        fill(array)
        array.flush()
    return np.load(target, mmap_mode="r")


def _from_hdf5(path: Path, key: str, cache: Path) -> np.ndarray:
    with _open_hdf5(path) as file:
        dataset = file[key]
        if dataset.nbytes <= IN_MEMORY:
            return np.asarray(dataset[()])
        stat = path.stat()
        target = cache / f"{path.stem}_{key.replace('/', '_')}_{stat.st_size}_{stat.st_mtime_ns}.npy"
        if target.exists():
            return np.load(target, mmap_mode="r")

        def fill(array: np.ndarray) -> None:
            for start in range(0, len(array), ROWS):
                array[start : start + ROWS] = dataset[start : start + ROWS]

        return write_npy(target, dataset.shape, dataset.dtype, fill)


def _from_npz(path: Path, key: str, cache: Path) -> np.ndarray:
    with _open_zip(path) as archive:
        member = archive.getinfo(f"{key}.npy")
        with archive.open(member) as stream:
            shape, dtype, offset = _npy_header(stream, path, key)
        if math.prod(shape) * dtype.itemsize <= IN_MEMORY:
            return np.load(path)[key]
        if member.compress_type == zipfile.ZIP_STORED:
            start = _data_start(path, member.header_offset) + offset
            return np.memmap(path, dtype, "r", start, shape)
        target = cache / f"{path.stem}_{key}_{member.CRC:08x}.npy"
        if not target.exists():
            _unpack(archive, member, target)
        return np.load(target, mmap_mode="r")


def _npy_header(stream: Any, path: Path, key: str) -> tuple[tuple[int, ...], np.dtype, int]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(stream)
    if is_fortran or dtype.hasobject:
        raise ValueError(f"{path}: {key} is no plain array in row order ({dtype})")
    return shape, dtype, stream.tell()


def _data_start(path: Path, header_offset: int) -> int:
    """Offset of a member's bytes: lengths in its local header may differ from the central directory's."""
    with path.open("rb") as file:
        file.seek(header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
    return header_offset + 30 + name_length + extra_length


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    with (
        atomic_file(target) as temporary,
        archive.open(member) as source,
        temporary.open("wb") as destination,
    ):
        shutil.copyfileobj(source, destination, 1 << 22)


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no whole .npz file: {error}") from error


def _open_hdf5(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no whole HDF5 file: {error}") from error
