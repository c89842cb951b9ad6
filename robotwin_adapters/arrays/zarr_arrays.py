"""Reads rows of Zarr arrays, v2 and v3, in a folder or a zip, with an allow list of codecs.

v2: a folder with `.zarray` (JSON: shape, chunks, dtype, compressor) and a file per chunk, "3.0.0". v3: a
folder with `zarr.json` and a file per chunk, "c/3/0/0", or a file per shard of many chunks, which ends with
an index of their offsets and sizes. A missing chunk consists of the fill value. Files choose their own codec,
and some codecs of numcodecs run code (`pickle`), so only those listed here are used.
"""

import bz2
import json
import lzma
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import google_crc32c
import numpy as np
from numpy import ndarray

from robotwin_adapters.storage import FileStore
from worldmodel.checked import shorten

MAX_CHUNK_BYTES = 1 << 30
MAX_META_BYTES = 1 << 20
MAX_BYTES, MAX_CHUNKS = 1 << 30, 1_000_000  # limits of a single read
MAX_LZMA_MEMORY = 256 << 20
BLOSC_HEADER, BLOSC_COPIED = 16, 2  # bytes; the flag of chunks that are stored uncompressed
UNPACKING = (zlib.error, lzma.LZMAError, struct.error)
CODECS = ("blosc", "lz4", "zstd")  # names in numcodecs; their headers declare the unpacked size
IMAGE_CODECS = tuple(f"imagecodecs_{kind}" for kind in ("jpegxl", "jpeg2k", "jpeg", "png", "webp"))
V2, V3 = ".zarray", "zarr.json"  # metadata file of an array
V3_PACKED = ("blosc", "zstd", "gzip")  # v3 codecs with the same name in v2
CHECKSUM, CHECKSUM_BYTES = "crc32c", 4
NO_CHUNK = 2**64 - 1  # offset and size of a chunk that is missing from its shard


@dataclass(frozen=True)
class ZarrArray:
    """One array, read from disk on every access."""

    store: FileStore
    path: str  # folder in the store
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    order: str
    separator: str
    codecs: tuple[str, ...]  # JSON of each, in decoding order; empty: raw
    fill: float
    per_shard: tuple[int, ...] = ()  # chunks per shard along each axis; empty: one file per chunk
    prefix: str = ""  # of chunk names

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, first: int, last: int) -> ndarray:
        """Rows first .. last - 1, assembled from the chunks that contain them."""
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
        file = np.floor_divide(place, self.per_shard) if self.per_shard else place
        name = f"{self.path}/{self.prefix}{self.separator.join(map(str, file))}"
        raw = self._stored(name, place) if self.store.exists(name) else None
        if raw is None:
            return np.full(self.chunks, self.fill, self.dtype)
        target = np.empty(self.chunks, self.dtype)
        try:
            for codec in self.codecs:
                raw = _decompress(raw, json.loads(codec), target)
        except (ValueError, RuntimeError, TypeError, OSError, MemoryError, *UNPACKING) as error:
            raise ValueError(f"chunk {name} cannot be unpacked ({error})") from error
        if len(raw) != target.nbytes:
            raise ValueError(f"chunk {name} unpacks to {len(raw)} bytes or more, expected {target.nbytes}")
        order: Any = self.order
        return np.frombuffer(raw, self.dtype).reshape(self.chunks, order=order)

    def _stored(self, name: str, place: tuple[int, ...]) -> bytes | None:
        """The stored bytes of a chunk; None if its shard does not contain it."""
        if not self.per_shard:
            return self.store.read(name, MAX_CHUNK_BYTES)
        count = int(np.prod(self.per_shard))
        length, stamp = self.store.size(name), self.store.stamp(name)
        table_bytes = 16 * count + CHECKSUM_BYTES
        if length < table_bytes:
            raise ValueError(f"shard {name} has {length} bytes, its table alone {table_bytes}")
        (table,) = self.store.read_spans(name, [(length - table_bytes, table_bytes)], stamp)
        entries = np.frombuffer(_checked(table, name), "<u8").reshape(*self.per_shard, 2)
        offset, size = (int(value) for value in entries[tuple(np.mod(place, self.per_shard))])
        if offset == NO_CHUNK:
            return None
        if offset + size > length or size > MAX_CHUNK_BYTES:
            raise ValueError(f"shard {name} has {length} bytes, chunk {place} is said to end behind them")
        return self.store.read_spans(name, [(offset, size)], stamp)[0]


def _box(start: ndarray, end: ndarray) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(start.tolist(), end.tolist(), strict=True))


def is_zarr_array(store: FileStore, path: str) -> bool:
    """Whether this folder of the store is an array rather than a v3 group, which also has a zarr.json."""
    if store.exists(f"{path}/{V2}"):
        return True
    name = f"{path}/{V3}"
    return store.exists(name) and json.loads(store.read(name, MAX_META_BYTES)).get("node_type") == "array"


def open_zarr_array(store: FileStore, path: str) -> ZarrArray:
    """The array in this folder of the store."""
    return _open_v2(store, path) if store.exists(f"{path}/{V2}") else _open_v3(store, path)


def _open_v2(store: FileStore, path: str) -> ZarrArray:
    name = f"{path}/{V2}"
    about = json.loads(store.read(name, MAX_META_BYTES))
    if not isinstance(about, dict) or about.get("zarr_format") != 2:
        raise ValueError(f"{name}: expected the description of a Zarr v2 array")
    shape, chunks = _sizes(name, about.get("shape")), _sizes(name, about.get("chunks"))
    dtype = np.dtype(about.get("dtype") if isinstance(about.get("dtype"), str) else "V1")
    if about.get("filters"):
        raise ValueError(f"{name}: expected numbers without filters, got {about['filters']!r}")
    _check_chunks(name, shape, chunks, dtype)
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
        codecs=(json.dumps(compressor),) if compressor else (),
        fill=float(fill) if isinstance(fill, int | float) else 0.0,
    )


def _open_v3(store: FileStore, path: str) -> ZarrArray:
    name = f"{path}/{V3}"
    about = json.loads(store.read(name, MAX_META_BYTES))
    if not isinstance(about, dict) or (about.get("zarr_format"), about.get("node_type")) != (3, "array"):
        raise ValueError(f"{name}: expected the description of a Zarr v3 array")
    shape, chunks = (
        _sizes(name, about.get("shape")),
        _sizes(name, _setting(about, "chunk_grid", "chunk_shape")),
    )
    codecs, per_shard = about.get("codecs"), ()
    if isinstance(codecs, list) and len(codecs) == 1 and codecs[0].get("name") == "sharding_indexed":
        inside = codecs[0].get("configuration", {})
        shard, chunks = chunks, _sizes(name, inside.get("chunk_shape"))
        ends = [codec.get("name") for codec in inside.get("index_codecs", [])] == ["bytes", CHECKSUM]
        if not ends or inside.get("index_location", "end") != "end" or np.mod(shard, chunks).any():
            raise ValueError(f"{name}: shards should end in a table of whole chunks with a checksum")
        codecs, per_shard = inside.get("codecs"), tuple(np.floor_divide(shard, chunks).tolist())
    kind = about.get("data_type")
    dtype = np.dtype(kind if isinstance(kind, str) else "V1")
    _check_chunks(name, shape, chunks, dtype)
    packed, is_big = _v3_codecs(name, codecs)
    keys = _setting(about, "chunk_key_encoding", "separator") or "/"
    fill = about.get("fill_value")
    return ZarrArray(
        store=store,
        path=path,
        shape=shape,
        chunks=chunks,
        dtype=dtype.newbyteorder(">" if is_big else "<").str,
        order="C",
        separator=keys if keys in (".", "/") else "/",
        codecs=packed,
        fill=float(fill) if isinstance(fill, int | float) else 0.0,
        per_shard=per_shard,
        prefix=f"c{keys}" if about.get("chunk_key_encoding", {}).get("name", "default") == "default" else "",
    )


def _v3_codecs(name: str, codecs: Any) -> tuple[tuple[str, ...], bool]:
    """Codec settings in decoding order, and whether numbers are big-endian."""
    listed = [codec for codec in codecs if isinstance(codec, dict)] if isinstance(codecs, list) else []
    names = [codec.get("name") for codec in listed]
    if names[:1] != ["bytes"] or not all(known in (*V3_PACKED, CHECKSUM) for known in names[1:]):
        raise ValueError(f"{name}: expected codecs bytes, {', '.join(V3_PACKED)} or {CHECKSUM}, got {names}")
    settings = listed[0].get("configuration") or {}
    return tuple(json.dumps({"id": known}) for known in names[:0:-1]), settings.get("endian") == "big"


def _setting(about: Mapping[str, Any], part: str, key: str) -> Any:
    """about[part]["configuration"][key], or None if any level is missing."""
    said = about.get(part)
    inside = said.get("configuration") if isinstance(said, dict) else None
    return inside.get(key) if isinstance(inside, dict) else None


def _check_chunks(name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype) -> None:
    if dtype.kind not in "fiub" or len(shape) != len(chunks) or 0 in chunks:
        raise ValueError(f"{name}: expected numbers in chunks, got {dtype} {shape} {chunks}")
    if int(np.prod(chunks, dtype=object)) * dtype.itemsize > MAX_CHUNK_BYTES:
        raise ValueError(f"{name}: chunks of {chunks} {dtype} are too large")


def _checked(data: bytes, name: str) -> bytes:
    """The data without the trailing CRC-32C, which is verified."""
    body, end = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if len(end) < CHECKSUM_BYTES or google_crc32c.value(body) != int.from_bytes(end, "little"):
        raise ValueError(f"{name}: does not match its checksum")
    return body


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else []
    if not sizes or not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        raise ValueError(f"{name}: shape and chunks should be lists of whole numbers, got {value!r}")
    return tuple(sizes)


def _decompress(data: bytes, settings: Any, target: ndarray) -> bytes:
    """Decompress into the target's size, or one byte more if the data are longer; overwrites the target."""
    name = settings.get("id") if isinstance(settings, dict) else None
    size = target.nbytes
    if name == CHECKSUM:
        return _checked(data, "a chunk")
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
        raise ValueError("Zarr chunks need the package numcodecs: pip install -e '.[zarr]'") from error
    if name in IMAGE_CODECS:
        _register_image_codecs(name)
        numcodecs.get_codec({"id": name}).decode(data, out=target)  # pictures of another size are refused
        return target.tobytes()
    if (claimed := _claimed_size(name, data)) != size:
        raise ValueError(f"claims {claimed} bytes, expected {size}")
    if name == "blosc":
        _check_blosc(data)
    return bytes(numcodecs.get_codec({"id": name}).decode(data))  # other settings matter to writers


def _check_blosc(data: bytes) -> None:
    """Refuse headers and tables that point outside the chunk, on which the Blosc library would crash."""
    flags, typesize, total, block, packed = struct.unpack_from("<2xBBIII", data)
    count = -(-total // block) if block else 0
    if not typesize or packed != len(data) or not 0 < block <= max(total, 1):
        raise ValueError(f"a Blosc header of {packed} bytes in blocks of {block}, the chunk has {len(data)}")
    if not flags & BLOSC_COPIED:
        table = struct.unpack_from(f"<{count}i", data, BLOSC_HEADER)
        if not all(BLOSC_HEADER + 4 * count <= start < len(data) for start in table):
            raise ValueError("a Blosc block lies outside of its chunk")


def _claimed_size(name: str, data: bytes) -> int:
    """The uncompressed size declared in the header; -1 if there is none."""
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
            f"pictures packed by {name} need the package imagecodecs: pip install -e '.[zarr]'"
        ) from error
    register_codecs(name, verbose=False)
