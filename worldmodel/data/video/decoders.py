"""Decoding chosen frames; a few files stay open in each thread."""

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
MAX_OPEN_PIXELS = 1 << 23  # of one file's decoders together: each holds several frames
FAR = 32  # frames behind a key frame: seeking it again costs more than another open decoder


class Decoder:
    """An open file; reading goes on from where it stands if no key frame is nearer."""

    def __init__(self, path: str) -> None:
        self.path, self.stamp = path, stamp_of(path)
        self._stack = contextlib.ExitStack()
        self._container, self._stream = self._stack.enter_context(open_stream(path))
        # Opened here: AV1's decoder looks at `skip_frame` once, when it opens, and would pass over all.
        self._stream.codec_context.open(strict=False)
        self._packets: Iterator[Any] = iter(())
        self._sent: int | None = None  # latest time among the packets that the decoder has; none: must seek

    def close(self) -> None:
        """The file is closed."""
        self._stack.close()

    def passes_to(self, table: VideoTable, index: int) -> int | None:
        """How many frames lie between here and that one; none if it must be sought from a key frame."""
        if self._sent is None:
            return None
        position = int(np.searchsorted(table.pts, self._sent))
        return index - position if _key_before(table, index) <= position < index else None

    def read(self, table: VideoTable, indices: Int64[np.ndarray, " n"]) -> Iterator[tuple[int, Any]]:
        """(index, frame) at these ascending positions, each exactly once.

        On the way to a wanted frame lie frames that nobody asked for. Those that no other frame is made from
        are passed over: the wanted ones stay the same to the last bit.
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
    """The packet without a time ends the stream: after it the decoder takes no other."""
    return None if sent is None or time is None else max(sent, time)


def _key_before(table: VideoTable, index: int) -> int:
    """The key frame from which a frame is decoded; the file's start if none is declared."""
    place = int(np.searchsorted(table.keys, index, side="right"))
    return int(table.keys[place - 1]) if place else 0


def _check_frame(path: str, table: VideoTable, index: int, frame: Any) -> None:
    if frame.pts != table.pts[index] or frame.is_corrupt:
        raise ValueError(f"{path}: frame {index} cannot be decoded")
    if (frame.height, frame.width) != table.size:
        raise ValueError(f"{path}: frame {index} is {frame.height}x{frame.width}, not {table.size}")


class Decoders:
    """Decoders that one thread used last; opening a file costs as much as decoding several frames.

    A file whose key frames lie far apart gets several, which stand at different places: the nearest one
    before the wanted frame goes on from there.
    """

    def __init__(self) -> None:
        self.in_use: list[Decoder] = []  # the last one was used last
        # one for all frames: preparing a conversion costs more than it
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
        """Whether a file must do with the decoders that it has."""
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
    """The pixels of an rgb24 frame, whose rows may be padded, in one copy."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    place.reshape(place.shape[0], -1)[:] = rows[: place.shape[0], : 3 * place.shape[1]]


class _Local(threading.local):
    """Decoders by process: a forked child leaves alone what its parent has open."""

    def __init__(self) -> None:
        self.by_process: dict[int, Decoders] = {}


_local = _Local()


def open_decoders() -> Decoders:
    """Those of this thread."""
    return _local.by_process.setdefault(os.getpid(), Decoders())
