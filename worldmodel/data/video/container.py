"""Metadata of a video container: its stream, and the times of its frames."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Int64

from worldmodel.checked import is_regular, lfs_hint

MAX_BYTES = 1 << 36  # of one file; sparse ones claim any size and take none
MAX_PIXELS = 1 << 26  # of one frame; a corrupt header may declare far more
STRICT = {"err_detect": "explode"}  # report errors that the decoder would otherwise conceal


class MissingVideoError(ValueError):
    """A dataset lists a video that is not there: common in published sets, and no damage."""


@dataclass(frozen=True)
class VideoTable:
    """Times, size and key frames from the container, in presentation order."""

    pts: Int64[np.ndarray, " t"]  # presentation times in ticks, ascending
    fps: float  # from the spacing of the frames
    size: tuple[int, int]  # (height, width) in pixels
    keys: Int64[np.ndarray, " k"]  # positions of the key frames, ascending


def probe_video(path: str | Path) -> VideoTable:
    """Frame count, times and size from the packets, without decoding; ValueError if they are inconsistent."""
    return _probe(str(path), stamp_of(path))


def stamp_of(path: str | Path) -> tuple[int, int]:
    """Size and modification time of the file, used as a cache key."""
    if not is_regular(Path(path)):
        raise MissingVideoError(f"no video file at {path}")
    status = os.stat(path)
    if status.st_size > MAX_BYTES:
        raise ValueError(f"{path}: {status.st_size} bytes, expected a video of at most {MAX_BYTES}")
    return status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def naming_the_file(path: str) -> Iterator[None]:
    """Turn FFmpeg errors into ValueErrors that name the file."""
    try:
        yield
    except (av.FFmpegError, UnicodeError, OverflowError) as error:
        raise ValueError(lfs_hint(path) or f"{path}: cannot be read as a video ({error})") from error


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream."""
    with naming_the_file(path), av.open(path) as container:
        if not container.streams.video:
            raise ValueError(f"{path}: no video stream in the file")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise ValueError(f"{path}: the video stream has no known codec")
        stream.codec_context.thread_count = 1  # parallelism comes from worker processes
        stream.codec_context.options = STRICT
        yield container, stream


@lru_cache(maxsize=4096)
def _probe(path: str, stamp: tuple[int, int]) -> VideoTable:
    with open_stream(path) as (container, stream):
        context, declared = stream.codec_context, stream.frames
        size = (context.height, context.width)
        if not (0 < size[0] * size[1] <= MAX_PIXELS):
            raise ValueError(f"{path}: frame size {size[0]}x{size[1]} is not usable")
        packets = [(packet.pts, packet.is_keyframe) for packet in container.demux(stream) if packet.size]
        time_base = stream.time_base
    if not packets or any(time is None for time, _ in packets):
        raise ValueError(f"{path}: no frames with times in the video stream")
    if declared and declared != len(packets):
        raise ValueError(f"{path}: the header declares {declared} frames, {len(packets)} are there")
    packets.sort()
    pts = np.asarray([time for time, _ in packets], dtype=np.int64)
    keys = np.flatnonzero([is_key for _, is_key in packets])
    step = _frame_step(path, pts)
    return VideoTable(pts, float(1 / (step * time_base)) if time_base else 0.0, size, keys)


def _frame_step(path: str, pts: Int64[np.ndarray, " t"]) -> Fraction:
    """Ticks per frame; frames must be evenly spaced, because an episode has a single frame rate."""
    if len(pts) == 1:
        return Fraction(1)
    step = Fraction(int(pts[-1] - pts[0]), len(pts) - 1)
    drift = np.abs((pts - pts[0]) - np.arange(len(pts)) * float(step))
    # Each frame goes to the nearest slot; coarse clocks (1/1000 s) err by far less than half a frame.
    if step <= 0 or drift.max() > 0.5 * float(step):
        worst = int(drift.argmax())
        raise ValueError(f"{path}: frames are not evenly spaced in time (frame {worst} is out of its place)")
    return step
