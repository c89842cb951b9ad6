"""Writes videos atomically, with a checksum at the end.

The last MP4 box holds the SHA-256 of everything before it. Players skip it, and readers can verify the file
without decoding.
"""

import hashlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import UInt8

from worldmodel.files import atomic_file

# size (4 bytes), type, our id (16 bytes), digest (32 bytes): a user box of the MP4 format
SEAL_HEAD = (56).to_bytes(4, "big") + b"uuid" + b"worldmodelsha256"


def write_video(
    path: str | Path,
    frames: Iterable[UInt8[np.ndarray, "H W 3"]],
    fps: float | int,
    keyframe_interval: int = 8,
) -> int:
    """Write H.264 yuv420p with a key frame every `keyframe_interval` frames, atomically."""
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


def _seal(path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    with path.open("ab") as file:
        file.write(SEAL_HEAD + digest)


@lru_cache(maxsize=4096)
def is_sealed(path: str, stamp: tuple[int, int]) -> bool:
    """Whether the file has our checksum; ValueError if it has one that does not match."""
    length = len(SEAL_HEAD) + hashlib.sha256().digest_size
    with open(path, "rb") as file:
        file.seek(max(0, stamp[0] - length))
        tail = file.read(length)
        # A partly damaged header still counts, or damage there would disable the check.
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
