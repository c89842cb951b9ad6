"""Video files as frame readers by PyAV, and a writer.

The decoder stops at errors that it would otherwise paint over. `VideoFrames.check` decodes all frames once;
what passed is remembered by content (`verified.py`). Videos we write end in a box with the SHA-256 of all
before it: players skip it, we need not decode then. A few files stay open in each thread (`_Decoders`).
"""

import contextlib
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from jaxtyping import Int64, UInt8

from worldmodel.checked import is_regular, lfs_hint
from worldmodel.data.verified import ensure_sound
from worldmodel.files import atomic_file

MAX_PIXELS = 1 << 26  # of one frame; a broken header can ask for far more
# size (4 bytes), type, our id (16 bytes), digest (32 bytes): a user box of the MP4 format
SEAL_HEAD = (56).to_bytes(4, "big") + b"uuid" + b"worldmodelsha256"
MAX_OPEN_FILES = 16  # in each thread; a decoder of 640x480 holds a few megabytes
STRICT = {"err_detect": "explode"}  # the decoder stops at errors it would otherwise paint over


@dataclass(frozen=True)
class VideoTable:
    """What the container says about its frames, in the order they are shown."""

    pts: Int64[np.ndarray, " t"]  # presentation times in ticks, ascending
    fps: float  # from the spacing of the frames
    size: tuple[int, int]  # (height, width) in pixels


@dataclass(frozen=True)
class VideoFrames:
    """Frames [offset, offset + length) of a video file; holds no open file, so it pickles and forks."""

    path: str
    offset: int
    length: int
    size: tuple[int, int]  # (height, width) in pixels

    def __len__(self) -> int:
        return self.length

    def check(self, *, again: bool = False) -> None:
        """Decode all frames, unless this content is known to be sound; a broken one is a ValueError."""
        part = f"frames {self.offset}+{self.length}"
        ensure_sound(self.path, part, partial(_verify, self.path, self.offset, self.length), again=again)

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at these positions, in this order; repeats are allowed."""
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        if wanted.size == 0:
            return np.zeros((0, *self.size, 3), np.uint8)
        if wanted.min() < 0 or wanted.max() >= self.length:
            raise ValueError(f"{self.path}: frame {wanted.tolist()} asked for, it has 0..{self.length - 1}")
        unique, inverse = np.unique(wanted + self.offset, return_inverse=True)
        frames = _decoders().read(self.path, unique)
        if frames.shape != (unique.size, *self.size, 3):
            raise ValueError(
                f"{self.path}: decoded to {frames.shape}, expected {(unique.size, *self.size, 3)}"
            )
        in_order = wanted.size == unique.size and bool((np.diff(wanted) > 0).all())
        return frames if in_order else frames[inverse]


def open_video(
    path: str | Path,
    *,
    offset: int = 0,
    length: int | None = None,
    verify: bool = True,
) -> VideoFrames:
    """Frames of a video file or of a part of it; `verify` decodes them once to find errors."""
    table = probe_video(path)
    total = len(table.pts)
    length = total - offset if length is None else length
    if offset < 0 or length < 1 or offset + length > total:
        raise ValueError(f"{path}: frames {offset}..{offset + length - 1} expected, the file has {total}")
    frames = VideoFrames(str(path), offset, length, table.size)
    if verify:
        frames.check()
    return frames


def probe_video(path: str | Path) -> VideoTable:
    """Frame count, times and size from the packets, without decoding; a ValueError when they disagree."""
    return _probe(str(path), _stamp(path))


def write_video(
    path: str | Path,
    frames: Iterable[UInt8[np.ndarray, "H W 3"]],
    fps: float | int,
    keyframe_interval: int = 8,
) -> int:
    """H.264 yuv420p with a key frame every `keyframe_interval` frames, whole or not at all."""
    path = Path(path)
    with atomic_file(path) as temporary:
        rate = Fraction(fps).limit_denominator(1001)
        count = _encode(temporary, path, iter(frames), rate, keyframe_interval)
        _seal(temporary)
    return count


def _encode(
    target: Path, name: Path, frames: Iterator[UInt8[np.ndarray, "H W 3"]], rate: Fraction, interval: int
) -> int:
    first = next(frames, None)
    if first is None:
        raise ValueError(f"{name}: a video needs at least one frame")
    height, width = first.shape[:2]
    if height % 2 or width % 2:
        raise ValueError(f"{name}: H.264 yuv420p needs an even height and width, got {height}x{width}")
    with av.open(str(target), "w", format="mp4", options={"movflags": "faststart"}) as container:
        # No scene cuts, no B-frames: key frames exactly every `interval`, so a seek decodes at most that.
        options = {"crf": "18", "preset": "veryfast", "bf": "0", "sc_threshold": "0"}
        stream: Any = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.gop_size = interval
        count = 0
        for image in _chain(first, frames):
            if image.shape != first.shape or image.dtype != np.uint8:
                raise ValueError(
                    f"{name}: frame {count} is {image.dtype} {image.shape}, expected {first.shape}"
                )
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            container.mux(stream.encode(frame))
            count += 1
        container.mux(stream.encode())
    return count


def _chain(first: np.ndarray, rest: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    yield first
    yield from rest


def _stamp(path: str | Path) -> tuple[int, int]:
    """Changes when the file does: the key under which a check is remembered."""
    if not is_regular(Path(path)):
        raise ValueError(f"no video file at {path}")
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _open_stream(path: str) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream; an FFmpeg error becomes a ValueError with the file."""
    try:
        with av.open(path) as container:
            if not container.streams.video:
                raise ValueError(f"{path}: no video stream in the file")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise ValueError(f"{path}: the video stream has no known codec")
            stream.codec_context.thread_count = 1  # workers are the parallelism
            stream.codec_context.options = STRICT
            yield container, stream
    except (av.FFmpegError, UnicodeError, OverflowError) as error:
        raise ValueError(lfs_hint(path) or f"{path}: cannot be read as a video ({error})") from error


@lru_cache(maxsize=4096)
def _probe(path: str, stamp: tuple[int, int]) -> VideoTable:
    with _open_stream(path) as (container, stream):
        context, declared = stream.codec_context, stream.frames
        size = (context.height, context.width)
        if not (0 < size[0] * size[1] <= MAX_PIXELS):
            raise ValueError(f"{path}: frame size {size[0]}x{size[1]} is not usable")
        times = [packet.pts for packet in container.demux(stream) if packet.size]
        time_base = stream.time_base
    if not times or any(time is None for time in times):
        raise ValueError(f"{path}: no frames with times in the video stream")
    if declared and declared != len(times):
        raise ValueError(f"{path}: the header declares {declared} frames, {len(times)} are there")
    pts = np.sort(np.asarray(times, dtype=np.int64))
    step = _frame_step(path, pts)
    return VideoTable(pts, float(1 / (step * time_base)) if time_base else 0.0, size)


def _frame_step(path: str, pts: Int64[np.ndarray, " t"]) -> Fraction:
    """Ticks per frame; frames must sit on an even time grid, since an episode has one frame rate."""
    if len(pts) == 1:
        return Fraction(1)
    step = Fraction(int(pts[-1] - pts[0]), len(pts) - 1)
    drift = np.abs((pts - pts[0]) - np.arange(len(pts)) * float(step))
    # Half a frame decides which slot a frame is in; coarse clocks (1/1000 s) stay well below.
    if step <= 0 or drift.max() > 0.5 * float(step):
        worst = int(drift.argmax())
        raise ValueError(f"{path}: frames are not evenly spaced in time (frame {worst} is out of its place)")
    return step


def _seal(path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    with path.open("ab") as file:
        file.write(SEAL_HEAD + digest)


@lru_cache(maxsize=4096)
def _is_sealed(path: str, stamp: tuple[int, int]) -> bool:
    """Whether the file carries our digest; a ValueError if it does and the bytes are not those written."""
    length = len(SEAL_HEAD) + hashlib.sha256().digest_size
    with open(path, "rb") as file:
        file.seek(max(0, stamp[0] - length))
        tail = file.read(length)
        # A damaged head still counts, or damage across its border would lift the protection.
        alike = sum(a == b for a, b in zip(tail, SEAL_HEAD, strict=False))
        if len(tail) != length or alike < len(SEAL_HEAD) // 3:
            return False
        file.seek(0)
        digest, left = hashlib.sha256(), stamp[0] - length
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    if digest.digest() != tail[len(SEAL_HEAD) :]:
        raise ValueError(f"{path}: the file has changed since it was written (checksum differs)")
    return True


def _verify(path: str, offset: int, length: int) -> None:
    """Compare our checksum, or decode the range: every frame must come, at its time and size."""
    if _is_sealed(path, _stamp(path)):
        return
    with _open_stream(path) as (container, stream):
        for _ in _decode(path, container, stream, probe_video(path), np.arange(offset, offset + length)):
            pass


def _decode(
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


class _Decoders:
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
            found = _decode(path, container, stream, table, indices)
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
        stamp = _stamp(path)
        if path in self._open and self._open[path][0] != stamp:
            self._close(path)
        if path not in self._open:
            while len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            stack = contextlib.ExitStack()
            self._open[path] = (stamp, stack, *stack.enter_context(_open_stream(path)))
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
        self.by_process: dict[int, _Decoders] = {}


_local = _Local()


def _decoders() -> _Decoders:
    return _local.by_process.setdefault(os.getpid(), _Decoders())
