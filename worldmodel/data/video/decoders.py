"""Decoding chosen frames; a few files stay open in each thread."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from jaxtyping import Int64, UInt8

from worldmodel.data.video.container import VideoTable, open_stream, probe_video, stamp_of

MAX_OPEN_FILES = 16  # in each thread; a decoder of 640x480 holds a few megabytes


def decode(
    path: str, container: Any, stream: Any, table: VideoTable, indices: Int64[np.ndarray, " n"]
) -> Iterator[tuple[int, Any]]:
    """(index, frame) at these ascending positions, each exactly once.

    Between a key frame and a wanted frame lie frames that nobody asked for. Those that no other frame is made
    from are passed over: the wanted ones stay the same to the last bit.
    """
    times = table.pts[indices]
    wanted, left = set(times.tolist()), iter(zip(indices.tolist(), times.tolist(), strict=True))
    index, time = next(left)
    container.seek(time, stream=stream)
    for packet in container.demux(stream):
        is_needed = packet.pts is None or packet.pts in wanted
        stream.codec_context.skip_frame = "DEFAULT" if is_needed else "NONREF"
        for frame in packet.decode():
            if frame.pts is None or frame.pts < time:
                continue
            if frame.pts != time or frame.is_corrupt:
                raise ValueError(f"{path}: frame {index} cannot be decoded")
            if (frame.height, frame.width) != table.size:
                raise ValueError(f"{path}: frame {index} is {frame.height}x{frame.width}, not {table.size}")
            yield index, frame
            if index == indices[-1]:
                return
            index, time = next(left)
    raise ValueError(f"{path}: decoding ended before frame {index}")


class Decoders:
    """The files read last by one thread, open; opening one costs as much as decoding several frames."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[tuple[int, int], contextlib.ExitStack, Any, Any]] = OrderedDict()
        self._reformatter = (
            VideoReformatter()
        )  # one for all frames: preparing a conversion costs more than it

    def read(self, path: str, indices: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at ascending positions."""
        table = probe_video(path)
        frames = np.empty((len(indices), *table.size, 3), np.uint8)
        try:
            container, stream = self._stream(path)
            found = decode(path, container, stream, table, indices)
            for place, (_, frame) in zip(frames, found, strict=True):
                _copy_rows(self._reformatter.reformat(frame, format="rgb24"), place)
        except (av.FFmpegError, UnicodeError, OverflowError) as error:
            self._close(path)
            raise ValueError(f"{path}: cannot be read as a video ({error})") from error
        except ValueError:
            self._close(path)
            raise
        return frames

    def _stream(self, path: str) -> tuple[Any, Any]:
        stamp = stamp_of(path)
        if path in self._open and self._open[path][0] != stamp:
            self._close(path)
        if path not in self._open:
            while len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            stack = contextlib.ExitStack()
            self._open[path] = (stamp, stack, *stack.enter_context(open_stream(path)))
        self._open.move_to_end(path)
        return self._open[path][2:]

    def _close(self, path: str) -> None:
        if path in self._open:
            self._open.pop(path)[1].close()


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
