"""Decodes selected frames; a few files stay open in each thread."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from av.video.reformatter import VideoReformatter
from jaxtyping import Int64, UInt8

from worldmodel.data.video.container import VideoTable, naming_the_file, open_stream, probe_video, stamp_of

MAX_DECODERS = 16  # in each thread; one of 640x480 holds a few megabytes
MAX_OPEN_PIXELS = 1 << 23  # for all decoders of one file together: each holds several frames
FAR = 32  # frames after a key frame: beyond this, seeking again costs more than another open decoder


class Decoder:
    """An open file; reading continues from the current position unless a key frame is closer."""

    def __init__(self, path: str) -> None:
        self.path, self.stamp = path, stamp_of(path)
        self._stack = contextlib.ExitStack()
        self._container, self._stream = self._stack.enter_context(open_stream(path))
        # Opened here: AV1's decoder reads `skip_frame` only when it opens, and would skip every frame.
        self._stream.codec_context.open(strict=False)
        self._packets: Iterator[Any] = iter(())
        self._sent: int | None = None  # latest time among the packets sent to the decoder; none: must seek

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def passes_to(self, table: VideoTable, index: int) -> int | None:
        """Number of frames between the current position and `index`.

        None if it requires seeking to a key frame.
        """
        if self._sent is None:
            return None
        position = int(np.searchsorted(table.pts, self._sent))
        return index - position if _key_before(table, index) <= position < index else None

    def read(self, table: VideoTable, indices: Int64[np.ndarray, " n"]) -> Iterator[tuple[int, Any]]:
        """(index, frame) at these ascending positions, each exactly once.

        Frames on the way that were not requested are skipped if no other frame depends on them; the requested
        ones stay bit-identical.
        """
        times = table.pts[indices]
        wanted, left = set(times.tolist()), iter(zip(indices.tolist(), times.tolist(), strict=True))
        index, time = next(left)
        if self.passes_to(table, index) is None:
            self._sent = int(table.pts[0])
            self._container.seek(time, stream=self._stream)
            self._packets = self._container.demux(self._stream)
        for packet in self._packets:
            is_needed = packet.pts is None or packet.pts in wanted
            self._stream.codec_context.skip_frame = "DEFAULT" if is_needed else "NONREF"
            self._sent = _latest(self._sent, packet.pts)
            for frame in packet.decode():
                if frame.pts is None or frame.pts < time:
                    continue
                _check_frame(self.path, table, index, frame)
                yield index, frame
                if index == indices[-1]:
                    return
                index, time = next(left)
        raise ValueError(f"{self.path}: decoding ended before frame {index}")


def _latest(sent: int | None, time: int | None) -> int | None:
    """None after the packet without a time, which ends the stream: the decoder accepts no more packets."""
    return None if sent is None or time is None else max(sent, time)


def _key_before(table: VideoTable, index: int) -> int:
    """The last key frame up to `index`; the start of the file if none is declared."""
    place = int(np.searchsorted(table.keys, index, side="right"))
    return int(table.keys[place - 1]) if place else 0


def _check_frame(path: str, table: VideoTable, index: int, frame: Any) -> None:
    if frame.pts != table.pts[index] or frame.is_corrupt:
        raise ValueError(f"{path}: frame {index} cannot be decoded")
    if (frame.height, frame.width) != table.size:
        raise ValueError(f"{path}: frame {index} is {frame.height}x{frame.width}, not {table.size}")


class Decoders:
    """The most recently used decoders of one thread; opening a file costs as much as decoding several frames.

    A file with distant key frames gets several decoders at different positions: the nearest one before the
    requested frame continues from there.
    """

    def __init__(self) -> None:
        self.in_use: list[Decoder] = []  # most recently used last
        # one for all frames: setting up a conversion costs more than converting
        self._reformatter = VideoReformatter()

    def read(self, path: str, indices: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at ascending positions."""
        table = probe_video(path)
        frames = np.empty((len(indices), *table.size, 3), np.uint8)
        try:
            with naming_the_file(path):
                found = self._decoder(path, table, int(indices[0])).read(table, indices)
                for place, (_, frame) in zip(frames, found, strict=True):
                    _copy_rows(self._reformatter.reformat(frame, format="rgb24", threads=1), place)
        except ValueError:
            self._close(path)
            raise
        return frames

    def _decoder(self, path: str, table: VideoTable, first: int) -> Decoder:
        stamp = stamp_of(path)
        if any(one.path == path and one.stamp != stamp for one in self.in_use):
            self._close(path)
        ours = [one for one in self.in_use if one.path == path]
        ahead = [(passes, one) for one in ours if (passes := one.passes_to(table, first)) is not None]
        if ahead:
            chosen = min(ahead, key=lambda pair: pair[0])[1]
        elif ours and (self._is_full(ours, table) or first - _key_before(table, first) < FAR):
            chosen = ours[0]
        else:
            chosen = self._open(path)
        self.in_use.remove(chosen)
        self.in_use.append(chosen)
        return chosen

    def _is_full(self, ours: list[Decoder], table: VideoTable) -> bool:
        """Whether no further decoder may be opened for a file."""
        pixels = (len(ours) + 1) * table.size[0] * table.size[1]
        return len(self.in_use) >= MAX_DECODERS or pixels > MAX_OPEN_PIXELS

    def _open(self, path: str) -> Decoder:
        while len(self.in_use) >= MAX_DECODERS:
            self.in_use.pop(0).close()
        self.in_use.append(Decoder(path))
        return self.in_use[-1]

    def _close(self, path: str) -> None:
        for one in [one for one in self.in_use if one.path == path]:
            self.in_use.remove(one)
            one.close()


def _copy_rows(frame: Any, place: UInt8[np.ndarray, "H W 3"]) -> None:
    """Copy the pixels of an rgb24 frame, whose rows may be padded."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    place.reshape(place.shape[0], -1)[:] = rows[: place.shape[0], : 3 * place.shape[1]]


class _Local(threading.local):
    """Decoders per process: a forked child does not use those of its parent."""

    def __init__(self) -> None:
        self.by_process: dict[int, Decoders] = {}


_local = _Local()


def open_decoders() -> Decoders:
    """The decoders of the current thread."""
    return _local.by_process.setdefault(os.getpid(), Decoders())
