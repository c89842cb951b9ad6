"""Reading HDF5 files one does not trust: no way out of the file, no surprise in type, shape or size."""

import h5py
import numpy as np
from numpy import ndarray

MAX_NUMBER_BYTES = 256 << 20
HEAP_MARK = b"GCOL\x01"  # begins a heap of variable-length strings
HEAP_HEADER_BYTES = 16  # of the heap, and of each entry in it


def group_at(parent: h5py.Group, path: str) -> h5py.Group:
    """The group at this path."""
    item = _item_at(parent, path)
    if not isinstance(item, h5py.Group):
        raise ValueError(f"expected a group {_full(parent, path)}, got {type(item).__name__}")
    return item


def dataset_at(parent: h5py.Group, path: str) -> h5py.Dataset:
    """The dataset at this path, whose values lie in this very file."""
    item = _item_at(parent, path)
    if not isinstance(item, h5py.Dataset):
        raise ValueError(f"expected a dataset {_full(parent, path)}, got {type(item).__name__}")
    if item.is_virtual or item.external is not None:
        raise ValueError(f"{item.name} takes its values from other files")
    return item


def numbers_at(parent: h5py.Group, path: str, shape: tuple[int | None, ...]) -> ndarray:
    """Finite floating numbers of this shape; None stands for any size."""
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


def text_at(parent: h5py.Group, path: str) -> str:
    """A single UTF-8 string."""
    item = dataset_at(parent, path)
    value = item[()] if item.shape == () else None
    if not isinstance(value, bytes):
        raise ValueError(f"{item.name}: expected one string, got {item.dtype} {item.shape}")
    return value.decode("utf-8")


def check_string_heaps(data: bytes) -> None:
    """Refuse a file whose string heaps cannot be walked: HDF5 2.0 circles for ever on an entry of no size."""
    at = data.find(HEAP_MARK)
    while at >= 0:
        end = at + int.from_bytes(data[at + 8 : at + 16], "little")
        entry = at + HEAP_HEADER_BYTES
        while entry + HEAP_HEADER_BYTES <= end:
            is_free = data[entry : entry + 2] == b"\0\0"
            size = int.from_bytes(data[entry + 8 : entry + 16], "little")
            # Free space counts its own header, a string does not and is padded to 8 bytes.
            step = size if is_free else HEAP_HEADER_BYTES + (size + 7) // 8 * 8
            if step < HEAP_HEADER_BYTES or entry + step > min(end, len(data)):
                raise ValueError(f"the heap of strings at byte {at} is broken")
            entry += step
        at = data.find(HEAP_MARK, at + 1)


def _item_at(parent: h5py.Group, path: str) -> h5py.Group | h5py.Dataset:
    item = parent
    for part in path.split("/"):
        if not isinstance(item, h5py.Group) or part not in item:
            known = sorted(item) if isinstance(item, h5py.Group) else []
            raise ValueError(f"{_full(parent, path)} is missing; {item.name} holds {known}")
        if not isinstance(item.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{_full(parent, path)} is a link, expected the thing itself")
        item = item[part]
    return item


def _full(parent: h5py.Group, path: str) -> str:
    return f"{parent.name.rstrip('/')}/{path}"
