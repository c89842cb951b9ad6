"""Folders of mp4 files with JSON, NPZ or CSV annotations (IRASim, Cosmos, Ctrl-World style sets) -> Episode.

A small YAML (`dataset.yaml` in the folder, or given) maps names to keys; the two public layouts need none.
"""

import csv
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from robotwin_adapters.camera_order import overview_first
from robotwin_adapters.lerobot.meta import read_json
from robotwin_adapters.storage import TABLE_FREE_BYTES, check_expansion
from worldmodel.config import load_config
from worldmodel.data.action_spaces import current_action_space
from worldmodel.data.video import VideoFrames, open_video, probe_video
from worldmodel.types import Episode

MAPPING_FILE = "dataset.yaml"
FIELD = re.compile(r"\\\{(\w+)\\\}")


@dataclass(frozen=True)
class VideoFolderConfig:
    """Where the files lie and what their keys mean; the defaults read the Ctrl-World layout."""

    annotation: str = "annotation/{split}/{id}.json"  # one file per episode; a {field} holds no slash
    video: str = "videos/{split}/{id}/{camera}.mp4"  # fields of `annotation` must agree; {camera} is free
    video_key: str = "videos"  # annotation list of video paths; where present it must agree with the files
    state_keys: tuple[str, ...] = ("states",)  # joined side by side; dots reach into nested objects
    action_keys: tuple[str, ...] = ()  # as state_keys; empty: the next state is the action
    action_stride: int = 1  # annotation rows per video frame, for actions
    text_key: str = "texts"  # instruction, or a list of them
    length_key: str = "video_length"  # declared number of frames; where present it must agree
    max_extra_frames: int = 1  # frames a video may have beyond the annotation; cut from its end
    fps: float = 0.0  # frames per second; 0 takes it from the video
    state_names: tuple[str, ...] = ()  # one per state dimension; empty: state_0, ...
    action_names: tuple[str, ...] = ()  # one per action dimension; empty: action_0, ... or the state names
    action_space: str = ""  # joint_commands, pose_commands or measured_poses; empty: not known
    cameras: tuple[str, ...] = ()  # new names for the cameras in sorted order; empty: as in the files
    embodiment: str = ""  # name of the robot; empty: name of the dataset folder
    task: str = ""  # name of the task; empty: the first instruction

    def __post_init__(self) -> None:
        current_action_space(self.action_space)
        if not self.state_keys and not self.action_keys:
            raise ValueError("a video folder needs state_keys or action_keys")
        if self.action_stride < 1 or self.max_extra_frames < 0 or self.fps < 0:
            raise ValueError("action_stride >= 1, max_extra_frames >= 0 and fps >= 0 are needed")
        if "{camera}" not in self.video or "{camera}" in self.annotation:
            raise ValueError("{camera} belongs in the video pattern, and only there")
        for pattern in (self.annotation, self.video):
            if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
                raise ValueError(f"a pattern stays inside the dataset folder, got {pattern!r}")


# Ctrl-World: states are measured poses, and the next one is the action.
CTRL_WORLD = VideoFolderConfig(action_space="measured_poses")
# IRASim and the Cosmos action-conditioned examples: pose and gripper apart, actions given.
IRASIM = VideoFolderConfig(state_keys=("state", "continuous_gripper_state"), action_keys=("action",))


def is_video_folder(path: str | Path, mapping: str | Path | None = None) -> bool:
    """Whether the folder has files as the mapping says, or a mapping of its own, or the public layout."""
    path = Path(path)
    if mapping is not None:
        return any(_matches(path, load_config(VideoFolderConfig, str(mapping)).annotation))
    return (path / MAPPING_FILE).is_file() or all((path / name).is_dir() for name in ("annotation", "videos"))


class VideoFolderDataset:
    """Episodes of a folder of videos; `mapping` is a YAML file of VideoFolderConfig."""

    def __init__(
        self,
        path: str | Path,
        *,
        camera: str | None = None,
        mapping: str | Path | None = None,
        verify: bool = True,
    ) -> None:
        self.root = Path(path)
        self.camera = camera
        self.verify = verify
        self.name = self.root.resolve().name
        if mapping is None and (self.root / MAPPING_FILE).is_file():
            mapping = self.root / MAPPING_FILE
        self.config = load_config(VideoFolderConfig, str(mapping)) if mapping else _recognize(self.root)
        found = _matches(self.root, self.config.annotation)
        self.entries = sorted(found, key=lambda entry: _natural(entry[0]))
        if not self.entries:
            raise ValueError(f"{self.root}: no annotation matches {self.config.annotation!r}")
        self.action_space = current_action_space(self.config.action_space)
        self.format = f"videos + {Path(self.config.annotation).suffix[1:]} annotations"

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Episode:
        name, fields = self.entries[index]
        path, config = self.root / name, self.config
        content = read_annotation(path)
        states = _columns(path, content, config.state_keys) if config.state_keys else None
        actions = _columns(path, content, config.action_keys) if config.action_keys else None
        actions = actions[:: config.action_stride] if actions is not None else None
        length = _length(path, content, config, states, actions)
        frames, notes = self._frames(path, content, fields, length)
        fps = config.fps or probe_video(next(iter(frames.values())).path).fps
        if actions is None:
            assert states is not None
            actions, notes = states[1:], (*notes, "the action is the next state")
        texts = _texts(path, content, config.text_key)
        return Episode(
            uid="/".join(fields.values()) or PurePosixPath(name).stem,
            source=str(path),
            frames=frames,
            robot_actions=actions[: length - 1],
            action_names=_names(path, config.action_names or _next(config), actions.shape[1], "action"),
            fps=fps,
            embodiment=config.embodiment or self.name,
            task=config.task or (texts[0] if texts else ""),
            robot_states=states,
            state_names=() if states is None else _names(path, config.state_names, states.shape[1], "state"),
            instructions=texts,
            notes=notes,
            action_space=self.action_space,
        )

    def _frames(
        self, path: Path, content: Mapping[str, Any], fields: Mapping[str, str], length: int
    ) -> tuple[dict[str, VideoFrames], tuple[str, ...]]:
        videos = dict(self._videos(fields))
        if not videos:
            raise ValueError(f"{path}: no video matches {self.config.video!r}")
        _check_listed(path, content.get(self.config.video_key), list(videos.values()))
        names = sorted(videos, key=_natural)
        if self.config.cameras and len(self.config.cameras) != len(names):
            count = len(self.config.cameras)
            raise ValueError(f"{path}: {len(names)} videos, the mapping names {count} cameras")
        shown = dict(zip(self.config.cameras or names, names, strict=True))
        if self.camera is not None and self.camera not in shown:
            raise ValueError(f"{path}: no camera {self.camera!r}, it has {', '.join(shown)}")
        frames, notes = {}, []
        for camera in overview_first(shown) if self.camera is None else [self.camera]:
            file = self.root / videos[shown[camera]]
            extra = len(probe_video(file).pts) - length
            if not 0 <= extra <= self.config.max_extra_frames:
                raise ValueError(f"{file}: {length + extra} frames, expected {length} as in {path.name}")
            if extra:
                notes.append(f"camera {camera}: {extra} frame(s) more than annotation rows, cut from the end")
            frames[camera] = open_video(file, length=length, verify=self.verify)
        return frames, tuple(notes)

    def _videos(self, fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        pattern = self.config.video
        for field, value in fields.items():
            pattern = pattern.replace(f"{{{field}}}", _escape(value))
        for name, found in _matches(self.root, pattern):
            yield found["camera"], name


def read_annotation(path: Path) -> Mapping[str, Any]:
    """Keys and values of a .json, .npz or .csv file (a column per key); nothing is unpickled."""
    if path.suffix == ".json":
        return read_json(path)
    try:
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                header, *rows = list(csv.reader(file, strict=True)) or [[]]
            return {key: [row[column] for row in rows] for column, key in enumerate(header)}
    except Exception as error:  # zip and npy parsers raise many kinds on broken files
        raise ValueError(f"{path}: cannot be read as {path.suffix[1:]} ({error})") from error
    raise ValueError(f"{path}: annotations are .json, .npz or .csv files")


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    packed = sum(member.compress_size for member in members)
    check_expansion("the archive", packed, sum(m.file_size for m in members), free=TABLE_FREE_BYTES)
    with np.load(path, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _recognize(root: Path) -> VideoFolderConfig:
    pattern = VideoFolderConfig().annotation
    names = sorted(name for name, _ in _matches(root, pattern))
    if not names:
        raise ValueError(f"{root}: no annotation matches {pattern!r}; describe the folder in {MAPPING_FILE}")
    content = read_annotation(root / names[0])
    for config in (CTRL_WORLD, IRASIM):
        if all(key in content for key in (*config.state_keys, *config.action_keys)):
            return config
    keys = ", ".join(content)
    raise ValueError(f"{root / names[0]}: keys {keys} are of no known layout; map them in {MAPPING_FILE}")


def _matches(root: Path, pattern: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(relative path, fields) of the files that fit a pattern with {fields}."""
    regex = re.compile(FIELD.sub(r"(?P<\1>[^/]+)", re.escape(pattern.replace("[[]", "["))))
    for path in root.glob(re.sub(r"\{\w+\}", "*", pattern)):
        name = path.relative_to(root).as_posix()
        if (match := regex.fullmatch(name)) and path.is_file():
            yield name, match.groupdict()


def _escape(value: str) -> str:
    """For glob: file names may hold brackets."""
    return value.replace("[", "[[]")


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sorts episode 2 before episode 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name)]


def _columns(path: Path, content: Mapping[str, Any], keys: tuple[str, ...]) -> Float64[np.ndarray, "t d"]:
    """The arrays of these keys side by side, all finite and of one length."""
    columns = [_column(path, key, _lookup(path, content, key)) for key in keys]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) != 1:
        raise ValueError(f"{path}: {', '.join(keys)} have {lengths} rows, expected as many in each")
    return np.concatenate(columns, axis=1)


def _lookup(path: Path, content: Mapping[str, Any], key: str) -> Any:
    value: Any = content
    for part in [key] if key in content else key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"{path}: no key {key!r}, it has {', '.join(content)}")
        value = value[part]
    return value


def _column(path: Path, key: str, value: Any) -> Float64[np.ndarray, "t d"]:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {key!r} is not a table of numbers ({error})") from error
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"{path}: {key!r} has shape {array.shape}, expected rows of numbers")
    array = array.reshape(len(array), -1)
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ValueError(f"{path}: {key!r} has NaN or infinity in row {bad[0]}")
    return array


def _length(
    path: Path,
    content: Mapping[str, Any],
    config: VideoFolderConfig,
    states: Float[np.ndarray, "t s"] | None,
    actions: Float[np.ndarray, "n a"] | None,
) -> int:
    """T, from the states or else from the declared length or the actions (T or T - 1 rows)."""
    declared = content.get(config.length_key)
    if declared is not None and (isinstance(declared, bool) or not isinstance(declared, int)):
        raise ValueError(f"{path}: {config.length_key!r} is {declared!r}, expected a whole number")
    length = len(states) if states is not None else declared
    if length is None:
        assert actions is not None
        length = len(actions) + 1
    if declared is not None and declared != length:
        raise ValueError(f"{path}: {config.length_key} is {declared}, the states have {length} rows")
    if length < 2:
        raise ValueError(f"{path}: {length} frame(s), at least 2 are needed")
    if actions is not None and len(actions) not in (length, length - 1):
        raise ValueError(f"{path}: {len(actions)} actions for {length} frames, expected as many or one less")
    return length


def _check_listed(path: Path, listed: Any, files: list[str]) -> None:
    """Where the annotation lists its videos, each of them must be among the files found."""
    if listed is None:
        return
    entries = listed if isinstance(listed, list) else [listed]
    values = [entry.get("video_path") if isinstance(entry, dict) else entry for entry in entries]
    names = [value for value in values if isinstance(value, str)]
    if len(names) != len(values):
        raise ValueError(f"{path}: the list of videos is {str(listed)[:80]!r}, expected paths")
    missing = [
        name for name in names if not any(name.endswith(file) or file.endswith(name) for file in files)
    ]
    if missing or len(names) != len(files):
        raise ValueError(f"{path}: lists the videos {', '.join(names)}; found {', '.join(sorted(files))}")


def _texts(path: Path, content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = content.get(key)
    texts = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{path}: {key!r} is {str(value)[:80]!r}, expected a text or a list of texts")
    return tuple(text for text in texts if text.strip())


def _next(config: VideoFolderConfig) -> tuple[str, ...]:
    return () if config.action_keys else config.state_names


def _names(path: Path, names: tuple[str, ...], width: int, word: str) -> tuple[str, ...]:
    if names and len(names) != width:
        raise ValueError(f"{path}: {width} {word} dimensions, the mapping names {len(names)}")
    return names or tuple(f"{word}_{index}" for index in range(width))
