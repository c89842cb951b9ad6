"""Numbers and pictures in a group of an HDF5 file, recognized by shape and read lazily.

Pictures are raw (t H W 3), JPEG or PNG strings of fixed or variable length (t), or such strings padded with
zeros to rows of bytes (t n). No file handle stays open between reads: a reader can be pickled and is safe in
forked workers.
"""

import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from robotwin_adapters.arrays.frames import ArrayFrames
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.arrays.pictures import (
    decode_picture,
    frame_size,
    looks_like_encoded,
    looks_like_pictures,
    to_rgb,
)
from robotwin_adapters.hdf5_tree import (
    HEAP_SIGNATURE,
    MAX_NUMBER_BYTES,
    dataset_at,
    heap_entries,
    linked_item,
    names_in,
    open_hdf5,
    stamp_of,
    variable_rows,
)
from robotwin_adapters.storage import Stamp, check_expansion

MAX_FRAMES = 1_000_000
MAX_PICTURE_BYTES = 64 << 20  # of one frame
MAX_DEPTH = 6  # nested groups
FREE_BYTES = 1 << 30  # below this size any compression ratio is accepted, as for flat synthetic pictures
DENSE = 4  # read a contiguous block if at least one frame in this many is needed
HEAD_BYTES, TAIL_BYTES = 16 << 20, 64 << 20  # parts of the file searched for text attributes


@dataclass(frozen=True)
class Hdf5Pictures:
    """The pictures of one dataset."""

    path: str
    dataset: str  # path inside the file
    stamp: Stamp
    size: tuple[int, int]  # (height, width) in pixels
    is_encoded: bool

    def load(self, rows: Int64[ndarray, " n"]) -> UInt8[ndarray, "n H W 3"]:
        """The pictures at these rows, in ascending order."""
        if stamp_of(self.path) != self.stamp:
            raise ValueError("the file changed since the episode was opened")
        with open_hdf5(self.path) as file:
            found = _rows(dataset_at(file, self.dataset), rows)
        if not self.is_encoded:
            return to_rgb(np.asarray(found))
        return np.stack(
            [
                decode_picture(f"{self.dataset}, frame {number}", _encoded_bytes(row), self.size)
                for row, number in zip(found, rows, strict=True)
            ]
        )


def find_arrays(
    group: h5py.Group, path: Path, mapping: KeyMapping
) -> tuple[dict[str, Callable[[], ndarray]], dict[str, Callable[[], ArrayFrames]]]:
    """(numbers, pictures) in the group, by relative path; call the readers while the file is open."""
    numbers: dict[str, Callable[[], ndarray]] = {}
    pictures: dict[str, Callable[[], ArrayFrames]] = {}
    for name, item in _named(group):
        if _are_pictures(name, item):
            pictures[name] = partial(_open_frames, item, path, mapping)
        elif item.dtype.kind in "fiub" and item.shape:
            numbers[name] = partial(_numbers, group.file, str(item.name).lstrip("/"))
    return numbers, pictures


def json_objects(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects in the file's text attributes, found without HDF5's string reader.

    HDF5 2.0 loops forever on a damaged string heap, so heaps are found by their signature near the ends of
    the file, where writers put attributes that apply to all episodes.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = len(data)
        spans = [(0, min(HEAD_BYTES, size)), (max(HEAD_BYTES, size - TAIL_BYTES), size)]
        for start, end in spans:
            at = data.find(HEAP_SIGNATURE, start, end)
            while at >= 0:
                for text in heap_entries(data, at):
                    yield from _as_object(text)
                at = data.find(HEAP_SIGNATURE, at + 1, end)


def whole_number(item: h5py.HLObject, name: str) -> int | None:
    """The value of an integer attribute, or None if it does not exist."""
    if name not in item.attrs:
        return None
    attribute = item.attrs.get_id(name)
    if attribute.dtype.kind not in "iu" or attribute.shape != ():
        raise ValueError(f"{item.name}: attribute {name} is {attribute.dtype} {attribute.shape}")
    values = np.empty((), attribute.dtype)
    attribute.read(values)
    return int(values)


def _as_object(text: bytes) -> Iterator[dict[str, Any]]:
    if text[:1] == b"{":
        try:
            value = json.loads(text.rstrip(b"\0").decode("utf-8"))
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield value


def _named(group: h5py.Group) -> list[tuple[str, h5py.Dataset]]:
    """Datasets below a group; one that is also reachable by a link is listed under the link's name only."""
    found = [(name, item, h5py.h5o.get_info(item.id).addr) for name, item in _datasets(group)]
    prefix = str(group.name).rstrip("/")
    linked = {place for name, item, place in found if item.name != f"{prefix}/{name}"}
    return [
        (name, item) for name, item, place in found if item.name != f"{prefix}/{name}" or place not in linked
    ]


def _datasets(
    group: h5py.Group, prefix: str = "", depth: int = 0, seen: set[int] | None = None
) -> Iterator[tuple[str, h5py.Dataset]]:
    """Datasets below a group; links inside the file are followed, links to other files are skipped.

    A group may contain itself through links, so each is visited once.
    """
    seen = set() if seen is None else seen
    place = h5py.h5o.get_info(group.id).addr
    if depth > MAX_DEPTH or place in seen:
        return
    seen.add(place)
    for name in names_in(group):
        item = linked_item(group, name)
        if isinstance(item, h5py.Group):
            yield from _datasets(item, f"{prefix}{name}/", depth + 1, seen)
        elif isinstance(item, h5py.Dataset) and item.shape is not None:
            yield f"{prefix}{name}", item


def _are_pictures(name: str, item: h5py.Dataset) -> bool:
    if looks_like_pictures(name, item.shape, item.dtype):
        return True
    is_row = item.dtype.kind == "S" and item.ndim == 1
    is_padded = item.dtype == np.uint8 and item.ndim == 2
    if item.dtype.kind == "O" and item.ndim == 1 and len(item):
        return looks_like_encoded(variable_rows(item, [0])[0])
    if not (is_row or is_padded) or not len(item) or _row_bytes(item) > MAX_PICTURE_BYTES:
        return False
    return looks_like_encoded(_encoded_bytes(item[0]))


def _open_frames(item: h5py.Dataset, path: Path, mapping: KeyMapping) -> ArrayFrames:
    name = str(item.name).lstrip("/")
    dataset_at(item.file, name)  # refuses values stored in other files
    is_encoded = item.ndim < 4
    if not 0 < len(item) <= MAX_FRAMES or _row_bytes(item) > MAX_PICTURE_BYTES:
        raise ValueError(f"{name}: {item.dtype} {item.shape} is too large")
    check_expansion(name, item.id.get_storage_size(), int(item.nbytes), free=FREE_BYTES)
    if is_encoded:
        first = _encoded_bytes(_rows(item, np.zeros(1, np.int64))[0])
        height, width, _ = decode_picture(f"{name}, frame 0", first).shape
        size = (height, width)
    else:
        size = frame_size(item.shape)
    return ArrayFrames(
        source=Hdf5Pictures(str(path), name, stamp_of(path), size, is_encoded),
        length=len(item),
        size=size,
        # Raw pictures have no encoder that could have swapped their colors.
        swapped_colors=bool(mapping.swapped_colors) and is_encoded,
        upside_down=bool(mapping.upside_down),
    )


def _row_bytes(item: h5py.Dataset) -> int:
    return int(np.prod(item.shape[1:], dtype=np.int64)) * item.dtype.itemsize


def _encoded_bytes(row: Any) -> bytes:
    return row.tobytes() if isinstance(row, ndarray) else bytes(row)


def _rows(item: h5py.Dataset, unique: ndarray) -> Sequence[Any]:
    """The rows, read as one block unless most of it would be unused."""
    if item.dtype.kind == "O":
        return variable_rows(item, unique)
    first, last = int(unique[0]), int(unique[-1])
    if last - first + 1 <= DENSE * len(unique):
        return item[first : last + 1][unique - first]
    return [item[int(row)] for row in unique]


def _numbers(group: h5py.Group, name: str) -> ndarray:
    item = dataset_at(group, name)
    if item.nbytes > MAX_NUMBER_BYTES:
        raise ValueError(f"{item.name}: claims {item.nbytes} bytes")
    return np.asarray(item[()])
