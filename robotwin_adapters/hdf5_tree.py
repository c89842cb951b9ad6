"""Reads untrusted HDF5 files: no access outside the file; type, shape and size of everything are checked."""

import mmap
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np
from numpy import ndarray

from robotwin_adapters.hdf5_names import check_names

MAX_NUMBER_BYTES = 256 << 20
HEAP_SIGNATURE = b"GCOL\x01\0\0\0"  # signature of a heap of variable-length strings
REFERENCE = struct.Struct("<IQI")  # to a string: its length, the offset of its heap, its index there
NUMBERED = re.compile(r"(demo|ep|episode|rollout|traj|trajectory)[_-]?\d+")  # names of episode groups
HEAP_HEADER_BYTES = 16  # of the heap, and of each entry in it
Buffer = bytes | mmap.mmap  # the bytes of a whole file


def open_hdf5(path: str | Path) -> h5py.File:
    """Open read-only and without a lock: file locks fail on many network file systems."""
    _check_names(str(path), stamp_of(path))
    return h5py.File(path, "r", locking=False)


@lru_cache(maxsize=4096)
def _check_names(path: str, stamp: tuple[int, int]) -> None:
    with open(path, "rb") as file:
        if stamp[0]:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                check_names(data)


def stamp_of(path: str | Path) -> tuple[int, int]:
    """Size and modification time, which change with the file."""
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns


def hdf5_kind(path: str | Path) -> str:
    """robotwin, aloha, demos (robomimic and similar), the top-level names, or "" if it is not HDF5."""
    return _kind(str(path), stamp_of(path))


@lru_cache(maxsize=4096)
def _kind(path: str, stamp: tuple[int, int]) -> str:
    try:
        with open_hdf5(path) as file:
            top = set(names_in(file))
            if {"joint_action", "observation"} <= top or {"state", "action", "vision"} <= top:
                return "robotwin"
            if "action" in top and "observations" in top:
                return "aloha"
            if "data" in top and isinstance(file.get("data", getlink=True), h5py.HardLink):
                names = names_in(group_at(file, "data"))
                return "demos" if any(name.startswith("demo") for name in names) else ", ".join(top)
            if episodes_at_top(file):
                return "demos"
            return ", ".join(sorted(top))
    except (OSError, RuntimeError, KeyError, ValueError):
        return ""


def episodes_at_top(file: h5py.File) -> list[str]:
    """Numbered top-level groups that hold actions: episodes without a parent group."""
    names = [name for name in names_in(file) if NUMBERED.fullmatch(name)]
    groups = [linked_item(file, name) for name in names[:1]]
    holds = [set(names_in(group)) for group in groups if isinstance(group, h5py.Group)]
    return names if holds and holds[0] & {"action", "actions"} else []


def names_in(group: h5py.Group) -> list[str]:
    """The names in a group; names that are not UTF-8 are refused, because h5py returns them as bytes."""
    names = list(group)
    if odd := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"{group.name}: expected names in UTF-8, got {odd[0]!r}")
    return names


def group_at(parent: h5py.Group, path: str) -> h5py.Group:
    """The group at this path."""
    item = _item_at(parent, path)
    if not isinstance(item, h5py.Group):
        raise ValueError(f"expected a group {_full(parent, path)}, got {type(item).__name__}")
    return item


def dataset_at(parent: h5py.Group, path: str) -> h5py.Dataset:
    """The dataset at this path; its values must be stored in this file."""
    item = _item_at(parent, path)
    if not isinstance(item, h5py.Dataset):
        raise ValueError(f"expected a dataset {_full(parent, path)}, got {type(item).__name__}")
    if item.is_virtual or item.external is not None:
        raise ValueError(f"{item.name} takes its values from other files")
    return item


def numbers_at(parent: h5py.Group, path: str, shape: tuple[int | None, ...]) -> ndarray:
    """Finite floating-point numbers of this shape; None means any size."""
    item = dataset_at(parent, path)
    if item.dtype.kind != "f" or item.dtype.itemsize not in (4, 8):
        raise ValueError(f"{item.name}: expected float32 or float64, got {item.dtype}")
    fits = item.shape is not None and len(item.shape) == len(shape)
    if not fits or any(want not in (None, got) for want, got in zip(shape, item.shape, strict=True)):
        raise ValueError(f"{item.name}: expected shape {shape}, got {item.shape}")
    if item.nbytes > MAX_NUMBER_BYTES:
        raise ValueError(f"{item.name}: claims {item.nbytes} bytes")
    values = item[()]
    if not np.isfinite(values).all():
        raise ValueError(f"{item.name}: holds values that are not finite")
    return values


def integers_at(parent: h5py.Group, path: str, shape: tuple[int, ...]) -> ndarray:
    """Whole numbers of this shape."""
    item = dataset_at(parent, path)
    if item.dtype.kind not in "iu" or item.shape != shape:
        raise ValueError(f"{item.name}: expected whole numbers {shape}, got {item.dtype} {item.shape}")
    return np.asarray(item[()])


def text_at(parent: h5py.Group, path: str, data: bytes) -> str:
    """A single UTF-8 string, located in `data`, the bytes of the whole file.

    HDF5's own string reader is not used: version 2.0 loops forever or crashes on damaged string heaps.
    """
    item = dataset_at(parent, path)
    offset = item.id.get_offset()
    if item.shape != () or h5py.check_string_dtype(item.dtype) is None or offset is None:
        raise ValueError(f"{item.name}: expected one string, got {item.dtype} {item.shape}")
    if item.dtype.kind == "S":
        return data[offset : offset + item.dtype.itemsize].rstrip(b"\0").decode("utf-8")
    try:
        length, heap, index = REFERENCE.unpack_from(data, offset)
        return _heap_entry(data, heap, index)[:length].decode("utf-8")
    except struct.error as error:
        raise ValueError(f"{item.name}: its text lies outside the file") from error


def variable_rows(item: h5py.Dataset, rows: Sequence[int] | ndarray) -> list[bytes]:
    """Rows of variable length, such as encoded pictures, read directly from the file (as in `text_at`)."""
    with open(item.file.filename, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = []
        for row in rows:
            length, heap, index = REFERENCE.unpack(_reference(item, data, int(row)))
            found.append(_heap_entry(data, heap, index)[:length])
    return found


def _reference(item: h5py.Dataset, data: Buffer, row: int) -> bytes:
    """The reference of a variable-length row: its length, its heap and the index there."""
    if item.chunks is None:
        start = (item.id.get_offset() or 0) + row * REFERENCE.size
        return bytes(data[start : start + REFERENCE.size])
    settings = item.id.get_create_plist()
    filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
    if filters not in ([], [h5py.h5z.FILTER_DEFLATE]):
        raise ValueError(f"{item.name}: rows of variable length behind filters {filters}")
    chunk, place = divmod(row, item.chunks[0])
    _, packed = item.id.read_direct_chunk((chunk * item.chunks[0],))
    size = item.chunks[0] * REFERENCE.size
    references = zlib.decompressobj().decompress(packed, size) if filters else packed
    return bytes(references[place * REFERENCE.size : (place + 1) * REFERENCE.size])


def attribute_at(item: h5py.HLObject, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> ndarray | None:
    """An attribute of exactly this type and shape; None if it does not exist."""
    if name not in item.attrs:
        return None
    attribute = item.attrs.get_id(name)
    if (attribute.dtype, attribute.shape) != (dtype, shape):
        raise ValueError(f"{item.name}: attribute {name} has type {attribute.dtype} {attribute.shape}")
    values = np.empty(shape, dtype)
    attribute.read(values)
    return values


def heap_entries(data: Buffer, heap: int) -> Iterator[bytes]:
    """The strings of the heap at this offset; stops early in a damaged heap."""
    yield from (entry for _, entry in _walk_heap(data, heap))


def _heap_entry(data: Buffer, heap: int, index: int) -> bytes:
    found = next((entry for number, entry in _walk_heap(data, heap) if number == index), None)
    if found is None:
        raise ValueError(f"no string {index} in the heap at byte {heap}")
    return found


def _walk_heap(data: Buffer, heap: int) -> Iterator[tuple[int, bytes]]:
    """(index, bytes); each entry begins with its index (2 bytes), 6 unused bytes and its size (8 bytes)."""
    signature, total = struct.unpack_from("<8sQ", data, heap)
    if signature != HEAP_SIGNATURE:
        raise ValueError(f"no heap of strings at byte {heap}")
    at, end = heap + HEAP_HEADER_BYTES, min(heap + total, len(data))
    while at + HEAP_HEADER_BYTES <= end:
        number, size = struct.unpack_from("<H6xQ", data, at)
        start = at + HEAP_HEADER_BYTES
        if number == 0 or start + size > end:  # entry 0 is the free space at the end
            break
        yield number, bytes(data[start : start + size])
        at = start + (size + 7) // 8 * 8


def linked_item(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """The member of the group, also through a soft link inside this file; None if there is none."""
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.HardLink):
        return group[name]
    if type(link) is not h5py.SoftLink:  # an external link points to another file
        return None
    try:
        return _item_at(group.file if link.path.startswith("/") else group, link.path.strip("/"))
    except ValueError:
        return None


def _item_at(parent: h5py.Group, path: str) -> h5py.Group | h5py.Dataset:
    item = parent
    for part in path.split("/"):
        if not isinstance(item, h5py.Group) or part not in item:
            known = sorted(names_in(item)) if isinstance(item, h5py.Group) else []
            raise ValueError(f"{_full(parent, path)} is missing; {item.name} holds {known}")
        if not isinstance(item.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{_full(parent, path)} is a link, expected the thing itself")
        item = item[part]
    return item


def _full(parent: h5py.Group, path: str) -> str:
    return f"{parent.name.rstrip('/')}/{path}"
