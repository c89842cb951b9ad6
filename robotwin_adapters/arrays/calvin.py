"""CALVIN: one NPZ file per frame, and the numbers of the first and last frame of each episode.

    training/episode_0358482.npz ..    training/ep_start_end_ids.npy

Frame t holds the pictures, `robot_obs`, and in `actions` the target pose that leads to frame t + 1 in world
coordinates. `rel_actions` is the same as a change, scaled to -1 .. 1; select it by action_keys in a mapping.
Instructions are in a pickle file, which is not opened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from robotwin_adapters.annotations import ARRAY, read_annotation
from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, build_episode
from robotwin_adapters.arrays.frames import ArrayFrames
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.arrays.npz import Header, npz_headers
from robotwin_adapters.arrays.pictures import frame_size, looks_like_pictures, to_rgb
from robotwin_adapters.storage import errors_name, is_regular
from worldmodel.types import Episode

BORDERS = "ep_start_end_ids.npy"
FPS = 30.0
POSE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
STATE = (*POSE[:-1], "gripper_width", *(f"joint{number}" for number in range(1, 8)), "gripper_action")
NOTE = "actions are target poses in world coordinates (mapping: action_keys: [rel_actions] takes changes)"


def is_calvin(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether the folder has the file that lists where episodes begin and end."""
    return path.is_dir() and is_regular(path / BORDERS)


class CalvinDataset(ArrayDataset):
    """The episodes of one split."""

    format = "CALVIN, a frame a file"

    def _find(self) -> list[tuple[int, int]]:
        path = self.root / BORDERS
        self.action_space = self.mapping.action_space or "pose_commands"
        with errors_name(str(path)):
            borders = np.asarray(read_annotation(path)[ARRAY])
            is_table = borders.ndim == 2 and borders.shape[1] == 2 and borders.dtype.kind in "iu"
            if not is_table or (borders < 0).any() or (borders[:, 1] <= borders[:, 0]).any():
                raise ValueError(f"{borders.dtype} {borders.shape}, expected first and last frames")
        names = sorted(p.stem for p in self.root.glob("episode_*.npz"))
        if not names:
            raise ValueError(f"{self.root}: no episode_*.npz beside {BORDERS}")
        self.digits = len(names[0].removeprefix("episode_"))
        return [(int(first), int(last)) for first, last in borders]

    def __getitem__(self, index: int) -> Episode:
        first, last = self.episodes[index]
        with errors_name(str(self.root)):
            files = tuple(self._file(number) for number in range(first, last + 1))
            headers = npz_headers(Path(files[0]))
            arrays = NamedArrays(
                uid=f"episode_{first:0{self.digits}d}",
                source=files[0],
                numbers={key: partial(_stacked, files, key) for key in headers},
                pictures=dict(_cameras(files, headers)),
                notes=() if self.mapping.action_keys else (NOTE,),
            )
            keys = KeyMapping(
                action_keys=("actions",),
                action_names=POSE if _has_shape(headers, "actions", (len(POSE),)) else (),
                state_keys=("robot_obs",) if "robot_obs" in headers else (),
                state_names=STATE if _has_shape(headers, "robot_obs", (len(STATE),)) else (),
                fps=FPS,
                embodiment="calvin_franka",
                action_space=self.action_space,
            )
            episode = build_episode(arrays, self.mapping.over(keys), self.camera)
        return episode if self.mapping.action_keys else replace(episode, delta_actions=())

    def _file(self, number: int) -> str:
        path = self.root / f"episode_{number:0{self.digits}d}.npz"
        if not is_regular(path):
            raise ValueError(f"{path.name} is missing, which {BORDERS} names")
        return str(path)


@dataclass(frozen=True)
class FramesOfFiles:
    """The pictures of one camera, one file per frame."""

    files: tuple[str, ...]
    key: str

    @property
    def path(self) -> str:
        """The first file, for error messages."""
        return self.files[0]

    def load(self, rows: Int64[ndarray, " n"]) -> UInt8[ndarray, "n H W 3"]:
        """The pictures at these rows."""
        return to_rgb(_stacked(tuple(self.files[row] for row in rows), self.key))


def _cameras(files: tuple[str, ...], headers: Mapping[str, Header]) -> list[tuple[str, partial[ArrayFrames]]]:
    found = []
    for key, header in headers.items():
        shape = (len(files), *header.shape)
        if looks_like_pictures(key, shape, header.dtype):
            source = FramesOfFiles(files, key)
            found.append((key, partial(ArrayFrames, source, len(files), frame_size(shape))))
    return found


def _has_shape(headers: Mapping[str, Header], key: str, shape: tuple[int, ...]) -> bool:
    return key in headers and headers[key].shape == shape


def _stacked(files: tuple[str, ...], key: str) -> ndarray:
    """The array of this name from each file, stacked."""
    values = []
    for file in files:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                values.append(arrays[key])
        except Exception as error:  # zip and npy parsers raise many kinds on broken files
            raise ValueError(f"{file}: {key!r} cannot be read ({error})") from error
        if values[-1].shape != values[0].shape or values[-1].dtype != values[0].dtype:
            raise ValueError(f"{file}: {key!r} is {values[-1].shape}, the first frame's {values[0].shape}")
    return np.stack(values)
