"""Zarr v2 arrays in a folder or a zip: the few lines that reading rows needs, with known codecs alone.

An array is a folder with `.zarray` (JSON: shape, chunks, dtype, compressor) and a file per chunk, "3.0.0". A
chunk that is not there holds the fill value: writers leave out chunks that are all of it. Files name their
codec themselves, and numcodecs knows some that run code (`pickle`): only those listed here are asked.
"""

import bz2
import json
import lzma
import math
import zlib
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy import ndarray

from robotwin_adapters.storage import FileStore
from worldmodel.checked import shorten

MAX_CHUNK_BYTES = 1 << 30
MAX_META_BYTES = 1 << 20
MAX_BYTES, MAX_CHUNKS = 1 << 30, 1_000_000  # of what is read at once
MAX_LZMA_MEMORY = 256 << 20
UNPACKING = (zlib.error, lzma.LZMAError)
CODECS = ("blosc", "lz4", "zstd")  # of numcodecs; their headers tell what they unpack to
IMAGE_CODECS = tuple(f"imagecodecs_{kind}" for kind in ("jpegxl", "jpeg2k", "jpeg", "png", "webp"))


@dataclass(frozen=True)
class ZarrArray:
    """One array; nothing of it is kept in memory."""

    store: FileStore
    path: str  # of its folder in the store
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    order: str
    separator: str
    compressor: str  # JSON of its settings; empty: none
    fill: float

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, first: int, last: int) -> ndarray:
        """Rows first .. last - 1, from every chunk that holds some of them."""
        grid = [range(-(-size // chunk)) for size, chunk in zip(self.shape, self.chunks, strict=True)]
        grid[0] = range(first // self.chunks[0], -(-last // self.chunks[0]))
        wanted = math.prod((last - first, *self.shape[1:], np.dtype(self.dtype).itemsize))
        if wanted > MAX_BYTES or math.prod(map(len, grid)) > MAX_CHUNKS:
            raise ValueError(f"{self.path}: {wanted} bytes in {math.prod(map(len, grid))} chunks at once")
        values = np.empty((last - first, *self.shape[1:]), self.dtype)
        offset = (first, *[0] * (len(self.shape) - 1))
        for place in product(*grid):
            start = np.multiply(place, self.chunks)
            end = np.minimum(start + self.chunks, (last, *self.shape[1:]))
            begin = np.maximum(start, offset)
            values[_box(begin - offset, end - offset)] = self._chunk(place)[_box(begin - start, end - start)]
        return values

    def _chunk(self, place: tuple[int, ...]) -> ndarray:
        name = f"{self.path}/{self.separator.join(map(str, place))}"
        if not self.store.exists(name):
            return np.full(self.chunks, self.fill, self.dtype)
        data = self.store.read(name, MAX_CHUNK_BYTES)
        target = np.empty(self.chunks, self.dtype)
        try:
            raw = _decompress(data, json.loads(self.compressor), target) if self.compressor else data
        except (ValueError, RuntimeError, TypeError, OSError, MemoryError, *UNPACKING) as error:
            raise ValueError(f"chunk {name} cannot be unpacked ({error})") from error
        if len(raw) != target.nbytes:
            raise ValueError(f"chunk {name} unpacks to {len(raw)} bytes or more, expected {target.nbytes}")
        order: Any = self.order
        return np.frombuffer(raw, self.dtype).reshape(self.chunks, order=order)


def _box(start: ndarray, end: ndarray) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(start.tolist(), end.tolist(), strict=True))


def open_zarr_array(store: FileStore, path: str) -> ZarrArray:
    """The array in this folder of the store."""
    name = f"{path}/.zarray"
    about = json.loads(store.read(name, MAX_META_BYTES))
    if not isinstance(about, dict) or about.get("zarr_format") != 2:
        raise ValueError(f"{name}: expected the description of a Zarr v2 array")
    shape, chunks = _sizes(name, about.get("shape")), _sizes(name, about.get("chunks"))
    dtype = np.dtype(about.get("dtype") if isinstance(about.get("dtype"), str) else "V1")
    if dtype.kind not in "fiub" or len(shape) != len(chunks) or 0 in chunks or about.get("filters"):
        raise ValueError(f"{name}: expected numbers in chunks without filters, got {dtype} {shape} {chunks}")
    if int(np.prod(chunks, dtype=object)) * dtype.itemsize > MAX_CHUNK_BYTES:
        raise ValueError(f"{name}: chunks of {chunks} {dtype} are too large")
    compressor, fill = about.get("compressor"), about.get("fill_value")
    order, separator = about.get("order", "C"), about.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise ValueError(f"{name}: order {order!r}, dimension_separator {separator!r}")
    return ZarrArray(
        store=store,
        path=path,
        shape=shape,
        chunks=chunks,
        dtype=dtype.str,
        order=order,
        separator=separator,
        compressor=json.dumps(compressor) if compressor else "",
        fill=float(fill) if isinstance(fill, int | float) else 0.0,
    )


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else []
    if not sizes or not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        raise ValueError(f"{name}: shape and chunks should be lists of whole numbers, got {value!r}")
    return tuple(sizes)


def _decompress(data: bytes, settings: Any, target: ndarray) -> bytes:
    """As many bytes as the target has, or one more where there are more; it is overwritten."""
    name = settings.get("id") if isinstance(settings, dict) else None
    size = target.nbytes
    if name in ("zlib", "gzip"):
        return zlib.decompressobj(31 if name == "gzip" else 15).decompress(data, size + 1)
    if name == "bz2":
        return bz2.BZ2Decompressor().decompress(data, size + 1)
    if name == "lzma":
        return lzma.LZMADecompressor(memlimit=MAX_LZMA_MEMORY).decompress(data, size + 1)
    if name not in (*CODECS, *IMAGE_CODECS):
        known = ("zlib", "gzip", "bz2", "lzma", *CODECS, *IMAGE_CODECS)
        raise ValueError(f"the compressor is {shorten(settings)}, expected one of {', '.join(known)}")
    try:
        import numcodecs
    except ImportError as error:
        raise ValueError("Zarr chunks need the package numcodecs: pip install worldmodel[zarr]") from error
    if name in IMAGE_CODECS:
        _register_image_codecs(name)
        numcodecs.get_codec({"id": name}).decode(data, out=target)  # pictures of another size are refused
        return target.tobytes()
    if (claimed := _claimed_size(name, data)) != size:
        raise ValueError(f"claims {claimed} bytes, expected {size}")
    return bytes(numcodecs.get_codec({"id": name}).decode(data))  # other settings matter to writers


def _claimed_size(name: str, data: bytes) -> int:
    """The bytes that a header promises; -1 where it does not tell."""
    if name != "zstd":
        return int.from_bytes(data[:4] if name == "lz4" else data[4:8], "little")
    kind = data[4] if len(data) > 4 else 0
    width = (1 if kind & 32 else 0, 2, 4, 8)[kind >> 6]  # bytes of the size
    start = 5 + (not kind & 32) + (0, 1, 2, 4)[kind & 3]
    return int.from_bytes(data[start : start + width], "little") + 256 * (width == 2) if width else -1


def _register_image_codecs(name: str) -> None:
    try:
        from imagecodecs.numcodecs import register_codecs
    except ImportError as error:
        raise ValueError(
            f"pictures packed by {name} need the package imagecodecs: pip install worldmodel[zarr]"
        ) from error
    register_codecs(name, verbose=False)
