"""Frames at the size of the clips, decoded once into mapped files: for what is trained on pictures.

A camera of G recorded frames takes 3 G height width bytes on disk: 400 MB for 18 minutes at 30 frames per
second and 64x64. Files appear by rename, whole or not at all, so several processes may make them.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import Aspect, ClipConfig, resize_frames
from worldmodel.data.video.container import stamp_of
from worldmodel.types import Episode, EpisodeSource, FrameReader

CHUNK = 64  # frames decoded at a time


@dataclass(frozen=True)
class KeptFrames:
    """A reader of another one's frames at one size; decodes all of them when the first is read."""

    inner: FrameReader
    file: str
    size: tuple[int, int]
    aspect: Aspect

    def __len__(self) -> int:
        return len(self.inner)

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at these positions, in this order."""
        if not Path(self.file).exists():
            self._decode()
        return np.asarray(_mapped(self.file)[np.asarray(indices, np.int64)])

    def _decode(self) -> None:
        Path(self.file).parent.mkdir(parents=True, exist_ok=True)
        partial = f"{self.file}.{os.getpid()}.writing"
        with open(partial, "wb") as file:
            shape = (len(self), *self.size, 3)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for first in range(0, len(self), CHUNK):
                frames = self.inner.read(range(first, min(first + CHUNK, len(self))))
                small = resize_frames(frames, *self.size, self.aspect).permute(0, 2, 3, 1)
                file.write(small.contiguous().numpy().tobytes())
        os.replace(partial, self.file)


@dataclass(frozen=True)
class KeptSource:
    """A dataset whose episodes show one camera at the size of the clips."""

    inner: EpisodeSource
    folder: str
    config: ClipConfig

    @property
    def name(self) -> str:
        """That of the dataset."""
        return self.inner.name

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Episode:
        episode, config = self.inner[index], self.config
        if isinstance(config.camera, tuple):
            raise ValueError("data.frames keeps pictures of one camera: leave it empty for several")
        name = choose_camera(episode, config.camera).name
        reader, size = episode.frames[name], (config.height, config.width)
        # Videos lie beside the table that the episode names; their readers tell where.
        path = getattr(reader, "path", episode.source)
        stamp = stamp_of(path) if Path(path).is_file() else episode.robot_actions.tobytes()
        described = (str(path), stamp, episode.uid, len(reader), name, size, config.aspect)
        key = hashlib.sha256(repr(described).encode()).hexdigest()[:32]
        kept = KeptFrames(reader, f"{self.folder}/{key[:2]}/{key}.npy", size, config.aspect)
        return replace(episode, frames={name: kept})


@lru_cache(maxsize=256)
def _mapped(file: str) -> UInt8[np.ndarray, "t H W 3"]:
    frames: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    return frames
