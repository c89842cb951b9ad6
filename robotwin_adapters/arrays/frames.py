"""The frame reader shared by all formats of named arrays.

A format only implements loading of picture rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from robotwin_adapters.storage import errors_name
from worldmodel.data.video import VideoFrames, open_video, probe_video

MAX_EXTRA_FRAMES = 1  # frames that a video may have beyond the rows; cut from its end


class PictureSource(Protocol):
    """The pictures of one camera; cheap to pickle, keeps no open file handle."""

    @property
    def path(self) -> str:
        """The file named in error messages."""
        ...

    def load(self, rows: Int64[ndarray, " n"]) -> UInt8[ndarray, "n H W 3"]:
        """The pictures at these rows, in ascending order."""
        ...


@dataclass(frozen=True)
class ArrayFrames:
    """A `FrameReader` over `length` rows of a source, starting at `first`."""

    source: PictureSource
    length: int
    size: tuple[int, int]  # (height, width) in pixels
    first: int = 0
    swapped_colors: bool = False
    upside_down: bool = False

    def __len__(self) -> int:
        return self.length

    @property
    def path(self) -> str:
        """The file that holds the pictures."""
        return self.source.path

    def read(self, indices: Sequence[int]) -> UInt8[ndarray, "n H W 3"]:
        """The RGB frames at these positions, in this order; repeats are allowed."""
        wanted = np.asarray(indices, np.int64).reshape(-1)
        if wanted.size == 0:
            return np.zeros((0, *self.size, 3), np.uint8)
        if wanted.min() < 0 or wanted.max() >= self.length:
            raise ValueError(f"{self.path}: frame {wanted.tolist()} asked for, it has 0..{self.length - 1}")
        unique, inverse = np.unique(wanted, return_inverse=True)
        with errors_name(self.path):
            frames = self.source.load(unique + self.first)
        if frames.shape != (len(unique), *self.size, 3):
            raise ValueError(
                f"{self.path}: decoded to {frames.shape}, expected {(len(unique), *self.size, 3)}"
            )
        frames = frames[..., ::-1] if self.swapped_colors else frames
        return (frames[:, ::-1] if self.upside_down else frames)[inverse]


def video_of_rows(path: Path, length: int, verify: bool) -> VideoFrames:
    """Open a video that must have one frame for each of `length` table rows."""
    found = len(probe_video(path).pts)
    if not 0 <= found - length <= MAX_EXTRA_FRAMES:
        raise ValueError(f"{path}: {found} frames, expected {length} as the numbers have rows")
    return open_video(path, length=length, verify=verify)
