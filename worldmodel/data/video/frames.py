"""Frame readers of video files.

Decoding errors are reported, not concealed. `VideoFrames.check` decodes all frames once; files that pass are
remembered by content (`decode_cache.py`).
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from worldmodel.data.decode_cache import ensure_sound
from worldmodel.data.video.container import naming_the_file, probe_video, stamp_of
from worldmodel.data.video.decoders import Decoder, open_decoders
from worldmodel.data.video.decord_frames import decord_frames, uses_decord
from worldmodel.data.video.write import is_sealed


@dataclass(frozen=True)
class VideoFrames:
    """Frames [offset, offset + length) of a video file.

    Holds no open file, so it can be pickled and forked.
    """

    path: str
    offset: int
    length: int
    size: tuple[int, int]  # (height, width) in pixels

    def __len__(self) -> int:
        return self.length

    def check(self, *, again: bool = False) -> None:
        """Decode all frames, unless this content passed before; a broken one raises ValueError."""
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
        read = decord_frames if uses_decord() else open_decoders().read
        frames = read(self.path, unique)
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


def _verify(path: str, offset: int, length: int) -> None:
    """Verify our checksum, or decode the range: every frame must appear with the expected time and size."""
    if is_sealed(path, stamp_of(path)):
        return
    with naming_the_file(path), contextlib.closing(Decoder(path)) as decoder:
        for _ in decoder.read(probe_video(path), np.arange(offset, offset + length)):
            pass
