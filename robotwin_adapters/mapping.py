"""The meaning of a dataset's keys: one small YAML for every format.

It is `dataset.yaml` in the folder, `data.mapping` of a training config or `--mapping` of a command, where it
may also be written out: --mapping '{fps: 10}'. A model keeps the one of its training. Missing settings use
the format's defaults. Readers look up the keys, `relabeled` applies the names.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from worldmodel.checked import check_ranges
from worldmodel.config import load_config
from worldmodel.data.action_deltas import ALL, NONE
from worldmodel.data.action_spaces import check_action_space
from worldmodel.types import FASTEST, SLOWEST, CameraMatrices, Episode

MAPPING_FILE = "dataset.yaml"
MAX_FIELDS = 3  # in one part of a pattern


@dataclass(frozen=True)
class Calibration:
    """Intrinsics and extrinsics of a static camera, the same in all episodes."""

    focal: tuple[float, float]  # focal lengths along x and y, pixels of the recorded picture
    center: tuple[float, float]  # principal point x, y, pixels
    # World to camera, OpenCV axes (x right, y down, z ahead), metres: three rows of four numbers in a row.
    extrinsics: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.extrinsics) != 12:
            raise ValueError(f"extrinsics are 3 x 4 numbers, row by row, got {len(self.extrinsics)}")

    def matrices(self, size: tuple[int, int]) -> CameraMatrices:
        """The matrices for pictures of this height and width."""
        (fx, fy), (cx, cy) = self.focal, self.center
        intrinsics = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], np.float64)
        return CameraMatrices(intrinsics, np.reshape(self.extrinsics, (3, 4)).astype(np.float64), size)


@dataclass(frozen=True)
class DataMapping:
    """Which keys are actions, states and cameras, and what they are called."""

    # Keys are columns of LeRobot tables, keys of annotations (dots reach into nested objects) or paths of
    # HDF5 and Zarr arrays. Several are concatenated; * matches any, in the order of the file.
    action_keys: tuple[str, ...] | None = None  # of the action; none: as in the format; []: the next state
    state_keys: tuple[str, ...] | None = None  # of the measured state; none: as in the format; []: no states
    camera_keys: tuple[str, ...] = ()  # of the cameras to read; empty: all of them
    cameras: tuple[str, ...] = ()  # new names for the cameras, in the order of camera_keys, else sorted
    calibration: dict[str, Calibration] = field(
        default_factory=dict
    )  # of cameras, by name, if not in the files
    action_names: tuple[str, ...] = ()  # one per action dimension; empty: as in the files
    state_names: tuple[str, ...] = ()  # one per state dimension; empty: as in the files
    action_space: str = ""  # joint_commands, pose_commands or measured_poses; empty: as in the files
    # With a stride, changes are summed; of absolute actions the last one is kept.
    action_deltas: tuple[str, ...] = ()  # dimensions that hold changes; [all], [none]; empty: detected
    # Angles that jump by a full turn: cut where they never are, or kept as in the files.
    angles: Literal["unwrap", "keep"] = "unwrap"
    embodiment: str = ""  # name of the robot; empty: as in the files, else name of the dataset folder
    task: str = ""  # name of the task; empty: the first instruction
    fps: float = 0.0  # frames per second; 0: as in the files
    timestamps: Literal["keep", "resample"] = "keep"  # uneven ones: count frames, or resample to an even rate
    text_key: str = ""  # of the instruction, or a list of them; empty: the format's default
    # Arrays of pictures only.
    swapped_colors: bool | None = None  # encoded pictures have red and blue swapped; none: as in the format
    upside_down: bool | None = None  # pictures are stored bottom row first; none: as in the format
    # Folders of videos with annotations only.
    annotation: str = "annotation/{split}/{id}.json"  # one file per episode; a {field} holds no slash
    video: str = ""  # fields of `annotation` must agree, {camera} is free; empty: as in public layouts
    video_key: str = "videos"  # annotation list of video paths; where present it must agree with the files
    action_stride: int = 1  # annotation rows per video frame, for actions
    length_key: str = "video_length"  # declared number of frames; where present it must agree
    max_extra_frames: int = 1  # frames a video may have beyond the annotation; cut from its end

    def __post_init__(self) -> None:
        check_action_space(self.action_space)
        if self.action_keys == () and self.state_keys == ():
            raise ValueError("a mapping needs state_keys or action_keys, got [] for both")
        check_ranges(self, action_stride=(1, 1_000_000), max_extra_frames=(0, 1_000_000), fps=(0, FASTEST))
        if 0 < self.fps < SLOWEST:
            raise ValueError(f"fps is 0 (as in the files) or at least {SLOWEST}, got {self.fps}")
        if self.cameras and self.camera_keys and len(self.cameras) != len(self.camera_keys):
            raise ValueError(f"cameras renames camera_keys one by one, got {self.cameras} {self.camera_keys}")
        if "{camera}" in self.annotation:
            raise ValueError("{camera} belongs in the video pattern, and only there")
        for pattern in (self.annotation, self.video):
            if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
                raise ValueError(f"a pattern stays inside the dataset folder, got {pattern!r}")
            _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    """Refuse invalid patterns, and those with so many fields that matching would take exponential time."""
    fields = re.findall(r"\{(.*?)\}", pattern)
    if odd := [name for name in fields if not name.isidentifier() or not name.isascii()]:
        raise ValueError(
            f"a field of a pattern is a word in braces, got {{{odd[0][:40]}}} in {pattern[:80]!r}"
        )
    if repeated := [name for name in fields if fields.count(name) > 1]:
        raise ValueError(f"{{{repeated[0]}}} stands twice in the pattern {pattern[:80]!r}")
    for part in PurePosixPath(pattern).parts:
        if part.count("{") > MAX_FIELDS or part.count("*") > MAX_FIELDS or ("**" in part and part != "**"):
            raise ValueError(
                f"a part of a pattern has at most {MAX_FIELDS} fields or stars, and ** stands alone; "
                f"got {part[:80]!r}"
            )


def read_mapping(root: Path, mapping: str | Path | None) -> DataMapping | None:
    """The given mapping, a file or its text in braces, else the one in the folder, else None."""
    if str(mapping or "").startswith("{"):
        return load_config(DataMapping, str(mapping))
    folder = root if root.is_dir() else root.parent
    path = folder / MAPPING_FILE if mapping is None else Path(mapping)
    if mapping is None and not path.is_file():
        return None
    try:
        return load_config(DataMapping, str(path))
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def mapping_text(mapping: str) -> str:
    """The settings of a mapping that are not the defaults, as text that `read_mapping` takes."""
    given, default = (asdict(one) for one in (read_mapping(Path(), mapping), DataMapping()) if one)
    return json.dumps({key: value for key, value in given.items() if value != default[key]})


def matching_keys(where: str, patterns: Iterable[str], keys: Iterable[str]) -> tuple[str, ...]:
    """Expand the mapping's keys, patterns with * in file order; a missing key is refused."""
    known = list(keys)
    found: dict[str, None] = {}
    for pattern in patterns:
        fits = [pattern] if pattern in known else [key for key in known if fnmatchcase(key, pattern)]
        if not fits:
            raise ValueError(f"{where}: the mapping names {pattern!r}, the data have {', '.join(known)}")
        found |= dict.fromkeys(fits)
    return tuple(found)


def relabeled(episode: Episode, mapping: DataMapping) -> Episode:
    """The episode with the names of the mapping."""
    names = _names(episode, "action", mapping.action_names, episode.action_names)
    state_names = _names(episode, "state", mapping.state_names, episode.state_names)
    if mapping.action_keys == () and not mapping.action_names and mapping.state_names:
        names = state_names
    unused = sorted(mapping.calibration.keys() - episode.frames.keys())
    return replace(
        episode,
        action_names=names,
        state_names=state_names,
        embodiment=mapping.embodiment or episode.embodiment,
        task=mapping.task or episode.task,
        fps=mapping.fps or episode.fps,
        action_space=check_action_space(mapping.action_space) or episode.action_space,
        cameras={**episode.cameras, **_calibrated(episode, mapping)},
        notes=(*episode.notes, *(f"calibration of {name} not used: no such camera" for name in unused)),
    )


def _calibrated(episode: Episode, mapping: DataMapping) -> dict[str, CameraMatrices]:
    return {
        name: known.matrices(episode.frames[name].size)
        for name, known in mapping.calibration.items()
        if name in episode.frames
    }


def _names(episode: Episode, word: str, given: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    if given and len(given) != len(found):
        raise ValueError(f"{episode.source}: {len(found)} {word} dimensions, the mapping names {len(given)}")
    return given or found


def chosen_deltas(where: str, mapping: DataMapping, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The dimensions that the mapping declares as deltas; None if it declares nothing."""
    if not mapping.action_deltas:
        return None
    if mapping.action_deltas in ((ALL,), (NONE,)):
        return names if mapping.action_deltas == (ALL,) else ()
    if unknown := sorted(set(mapping.action_deltas) - set(names)):
        raise ValueError(
            f"{where}: action_deltas names {', '.join(unknown)}, the action dimensions are {', '.join(names)}"
        )
    return tuple(name for name in names if name in mapping.action_deltas)
