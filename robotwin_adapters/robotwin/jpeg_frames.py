"""The JPEG frames of one camera inside an HDF5 episode, decoded only when read.

The format stores them uncompressed in one block, so frame i is at a fixed offset and no HDF5 handle stays
open between reads: a reader is a few numbers, cheap to pickle and safe in forked workers.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import h5py
import numpy as np
from jaxtyping import Int, UInt8, UInt32
from numpy import ndarray

from robotwin_adapters.hdf5_tree import attribute_at, dataset_at
from robotwin_adapters.robotwin.checksum import FRAMES_ATTRIBUTE
from robotwin_adapters.robotwin.jpeg import decode_rgb, read_header
from robotwin_adapters.storage import FileStore, Stamp, errors_name

MAX_FRAMES = 1_000_000
MAX_JPEG_BYTES = 32 << 20


@dataclass(frozen=True)
class JpegFrames:
    """A `FrameReader` over fixed-length JPEG strings."""

    store: FileStore
    name: str  # of the file in the store
    dataset: str  # path inside the file
    stamp: Stamp
    size: tuple[int, int]
    rows: Int[ndarray, " t"]  # indices in the file of the frames kept
    item_bytes: int
    offset: int | None  # of frame 0 in the file; None if HDF5 has to locate each frame
    checksums: UInt32[ndarray, " n"] | None  # CRC-32 of every buffer in the file

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, indices: Sequence[int]) -> UInt8[ndarray, "n H W 3"]:
        """The RGB frames at these positions."""
        rows = [int(self.rows[index]) for index in indices]
        # Channels first in memory, as models expect: one copy here, none later.
        frames = np.empty((len(rows), 3, *self.size), np.uint8)
        with errors_name(self.store.label(self.name)):
            unique = sorted(set(rows))
            for row, buffer in zip(unique, self._buffers(unique), strict=True):
                pixels = self._decode(row, buffer)
                for place in (i for i, wanted in enumerate(rows) if wanted == row):
                    for channel in range(3):
                        frames[place, channel] = pixels[..., channel]
        return frames.transpose(0, 2, 3, 1)

    def take(self, rows: Sequence[int]) -> "JpegFrames":
        """Select frames."""
        return replace(self, rows=self.rows[np.asarray(rows)])

    def is_unchanged(self, first: int, second: int, tolerance: float) -> bool:
        """Whether two frames have equal bytes, or a mean difference of at most `tolerance` gray levels."""
        with errors_name(self.store.label(self.name)):
            one, other = self._buffers([int(self.rows[first]), int(self.rows[second])])
        if one == other or tolerance == 0:
            return one == other
        before, after = self.read([first, second]).astype(np.int16)
        return float(np.abs(after - before).mean()) <= tolerance

    def _buffers(self, rows: Sequence[int]) -> list[bytes]:
        if self.offset is None:
            with self.store.open_hdf5(self.name) as file:
                values = dataset_at(file, self.dataset)
                return [bytes(values[row]) for row in rows]
        spans = [(self.offset + row * self.item_bytes, self.item_bytes) for row in rows]
        return [buffer.rstrip(b"\0") for buffer in self.store.read_spans(self.name, spans, self.stamp)]

    def _decode(self, row: int, buffer: bytes) -> UInt8[ndarray, "H W 3"]:
        try:
            if self.checksums is not None and zlib.crc32(buffer) != self.checksums[row]:
                raise ValueError("the bytes do not match their checksum")
            return decode_rgb(buffer, self.size)
        except (ValueError, OSError, SyntaxError) as error:
            raise ValueError(f"{self.dataset}, frame {row}: {error}") from error


def open_jpeg_frames(store: FileStore, name: str, file: h5py.File, path: str) -> JpegFrames:
    """A reader of the JPEG strings at `path`; reads the header of the first frame and decodes nothing."""
    item = dataset_at(file, path)
    if item.dtype.kind != "S" or item.shape is None or len(item.shape) != 1:
        raise ValueError(f"{path}: expected a row of fixed-length strings, got {item.dtype} {item.shape}")
    count, item_bytes = len(item), item.dtype.itemsize
    if not 0 < count <= MAX_FRAMES or not 0 < item_bytes <= MAX_JPEG_BYTES:
        raise ValueError(f"{path}: {count} frames of {item_bytes} bytes")
    header = read_header(bytes(item[0]))
    return JpegFrames(
        store=store,
        name=name,
        dataset=path,
        stamp=store.stamp(name),
        size=(header.height, header.width),
        rows=np.arange(count),
        item_bytes=item_bytes,
        offset=item.id.get_offset(),
        checksums=attribute_at(item, FRAMES_ATTRIBUTE, np.dtype(np.uint32), (count,)),
    )
