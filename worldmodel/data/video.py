"""Video files as frame readers (decord where it can, PyAV elsewhere), and a writer.

decord hides broken bitstreams (it shows a neighboring picture and says nothing), so the frames of an
episode are decoded once per process by PyAV with errors on, before decord gives random access to them.
Videos we write end in a box with the SHA-256 of all before it: players skip it, we need not decode then.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Int64, UInt8

from worldmodel.checked import is_regular
from worldmodel.files import atomic_file

try:
    import decord
except ImportError:  # no wheel for macOS and for some Pythons
    decord = None
else:
    decord.logging.set_level(decord.logging.QUIET)

# Where decord's frames equal PyAV's to the last bit; it cannot decode AV1 and rounds 10-bit differently.
DECORD_CODECS = ("h264", "hevc", "mpeg4")
DECORD_PIXELS = ("yuv420p", "yuvj420p")
MAX_PIXELS = 1 << 26  # of one frame; a broken header can ask for far more
# size (4 bytes), type, our id (16 bytes), digest (32 bytes): a user box of the MP4 format
SEAL_HEAD = (56).to_bytes(4, "big") + b"uuid" + b"worldmodelsha256"
STRICT = {"err_detect": "explode"}  # the decoder stops at errors it would otherwise paint over


@dataclass(frozen=True)
class VideoTable:
    """What the container says about its frames, in the order they are shown."""

    pts: Int64[np.ndarray, " t"]  # presentation times in ticks, ascending
    fps: float  # from the spacing of the frames
    size: tuple[int, int]  # (height, width) in pixels
    by_decord: bool


@dataclass(frozen=True)
class VideoFrames:
    """Frames [offset, offset + length) of a video file; no file stays open, so it pickles and forks."""

    path: str
    offset: int
    length: int
    size: tuple[int, int]  # (height, width) in pixels
    by_decord: bool

    def __len__(self) -> int:
        return self.length

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at these positions, in this order; repeats are allowed."""
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        if wanted.size == 0:
            return np.zeros((0, *self.size, 3), np.uint8)
        if wanted.min() < 0 or wanted.max() >= self.length:
            raise ValueError(f"{self.path}: frame {wanted.tolist()} asked for, it has 0..{self.length - 1}")
        unique, inverse = np.unique(wanted + self.offset, return_inverse=True)
        frames = (_read_decord if self.by_decord else _read_pyav)(self.path, unique)
        if frames.shape != (unique.size, *self.size, 3):
            raise ValueError(
                f"{self.path}: decoded to {frames.shape}, expected {(unique.size, *self.size, 3)}"
            )
        return frames[inverse]


def open_video(
    path: str | Path,
    *,
    offset: int = 0,
    length: int | None = None,
    verify: bool = True,
    backend: str = "auto",
) -> VideoFrames:
    """Frames of a video file or of a part of it; `verify` decodes them once per process to find errors."""
    table = probe_video(path)
    total = len(table.pts)
    length = total - offset if length is None else length
    if offset < 0 or length < 1 or offset + length > total:
        raise ValueError(f"{path}: frames {offset}..{offset + length - 1} expected, the file has {total}")
    if backend not in ("auto", "decord", "pyav"):
        raise ValueError(f"a video backend is auto, decord or pyav, got {backend!r}")
    if verify and not _is_sealed(str(path), _stamp(path)):
        _verify(str(path), _stamp(path), offset, length)
    by_decord = table.by_decord if backend == "auto" else backend == "decord"
    return VideoFrames(str(path), offset, length, table.size, by_decord)


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
        raise ValueError(f"{path}: cannot be read as a video ({error})") from error


@lru_cache(maxsize=512)
def _probe(path: str, stamp: tuple[int, int]) -> VideoTable:
    with _open_stream(path) as (container, stream):
        context, declared = stream.codec_context, stream.frames
        size = (context.height, context.width)
        if not (0 < size[0] * size[1] <= MAX_PIXELS):
            raise ValueError(f"{path}: frame size {size[0]}x{size[1]} is not usable")
        times = [packet.pts for packet in container.demux(stream) if packet.size]
        by_decord = decord is not None and context.name in DECORD_CODECS and context.pix_fmt in DECORD_PIXELS
        time_base = stream.time_base
    if not times or any(time is None for time in times):
        raise ValueError(f"{path}: no frames with times in the video stream")
    if declared and declared != len(times):
        raise ValueError(f"{path}: the header declares {declared} frames, {len(times)} are there")
    pts = np.sort(np.asarray(times, dtype=np.int64))
    step = _frame_step(path, pts)
    return VideoTable(pts, float(1 / (step * time_base)) if time_base else 0.0, size, by_decord)


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


@lru_cache(maxsize=4096)
def _verify(path: str, stamp: tuple[int, int], offset: int, length: int) -> None:
    """Decode the range once with errors on: every frame must come, at its time and size."""
    for _ in _decode(path, _probe(path, stamp), offset, offset + length):
        pass


def _decode(path: str, table: VideoTable, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """(index, frame) for start <= index < stop, each exactly once."""
    expected = start
    with _open_stream(path) as (container, stream):
        container.seek(int(table.pts[start]), stream=stream)
        for frame in container.decode(stream):
            if frame.pts is None or frame.pts < table.pts[expected]:
                continue
            if frame.pts != table.pts[expected] or frame.is_corrupt:
                raise ValueError(f"{path}: frame {expected} cannot be decoded")
            if (frame.height, frame.width) != table.size:
                raise ValueError(
                    f"{path}: frame {expected} is {frame.height}x{frame.width}, not {table.size}"
                )
            yield expected, frame
            expected += 1
            if expected == stop:
                return
    raise ValueError(f"{path}: decoding ended after frame {expected - 1}, expected {stop - 1}")


def _read_pyav(path: str, indices: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W 3"]:
    table, wanted = probe_video(path), set(indices.tolist())
    frames = _decode(path, table, int(indices[0]), int(indices[-1]) + 1)
    return np.stack([frame.to_ndarray(format="rgb24") for index, frame in frames if index in wanted])


def _read_decord(path: str, indices: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W 3"]:
    try:
        # Opened for each read: an open reader owns threads and would not survive a fork; it costs a few ms.
        reader = decord.VideoReader(path, ctx=decord.cpu(0), num_threads=1)
        return reader.get_batch(indices.tolist()).asnumpy()
    except (decord.DECORDError, RuntimeError):
        # decord refuses some good files (frames 16, 24, 48 or 72 wide); PyAV is the judge of what is broken.
        return _read_pyav(path, indices)
