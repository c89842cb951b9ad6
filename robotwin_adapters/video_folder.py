"""Folders of mp4 files with annotation files (IRASim, Cosmos, Ctrl-World, flat folders) -> Episode.

A small YAML (`dataset.yaml` in the folder, or given) maps keys to names. Public layouts and flat folders need
none.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from robotwin_adapters.annotations import ARRAY, SUFFIXES, read_annotation
from robotwin_adapters.arrays.hdf5_files import natural_order
from robotwin_adapters.camera_order import overview_first
from robotwin_adapters.mapping import MAPPING_FILE, DataMapping, read_mapping, relabeled
from worldmodel.data.action_spaces import check_action_space
from worldmodel.data.video import VideoFrames, open_video, probe_video
from worldmodel.types import Episode

FIELD = re.compile(r"\\\{(\w+)\\\}")
NESTED, FLAT = "videos/{split}/{id}/{camera}.mp4", "videos/{split}/{id}.mp4"
ONLY_CAMERA = "camera"  # camera name if the files give none
POSE_CHANGES = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "gripper")

# Ctrl-World: states are measured poses, and the next one is the action.
CTRL_WORLD = DataMapping(state_keys=("states",), action_keys=(), action_space="measured_poses")
# IRASim (Bridge, RT-1) and the Cosmos action-conditioned examples: pose and gripper apart, pose changes.
IRASIM = DataMapping(
    state_keys=("state", "continuous_gripper_state"), action_keys=("action",), action_names=POSE_CHANGES
)
# IRASim's Language-Table: changes in the plane, no states.
LANGUAGE_TABLE = DataMapping(state_keys=(), action_keys=("actions",), action_names=("dx", "dy"))
LAYOUTS = (CTRL_WORLD, IRASIM, LANGUAGE_TABLE)
# Flat folders, a video and an annotation of the same name: the usual names, actions before states.
PLAIN_LAYOUTS = tuple(
    DataMapping(state_keys=states, action_keys=actions)
    for actions in (("action",), ("actions",), (ARRAY,), ())
    for states in (("observation.state",), ("state",), ("states",), *([()] if actions else []))
)


def is_video_folder(path: str | Path, mapping: str | Path | None = None) -> bool:
    """Whether the folder matches the given mapping, has a mapping of its own, or has a public layout."""
    path = Path(path)
    known = read_mapping(path, mapping)
    if known is not None:
        return any(_matches(path, known.annotation))
    has_videos = any((path / name).is_dir() for name in ("videos", "video"))
    return _flat_mapping(path) is not None or ((path / "annotation").is_dir() and has_videos)


class VideoFolderDataset:
    """Episodes of a folder of videos; `mapping` is a YAML file of DataMapping."""

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
        given = read_mapping(self.root, mapping) or _flat_mapping(self.root) or DataMapping()
        self.entries = sorted(
            _matches(self.root, given.annotation), key=lambda entry: natural_order(entry[0])
        )
        if not self.entries:
            hint = "" if given != DataMapping() else f"; describe the folder in {MAPPING_FILE}"
            raise ValueError(f"{self.root}: no annotation matches {given.annotation!r}{hint}")
        self.config = _resolved(self.root, given, self.entries)
        _check_apart(self.root, self.config, self.entries)
        self.action_space = check_action_space(self.config.action_space)
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
        if states is None and config.length_key not in content and self._has_frames(fields, length - 1):
            length -= 1  # as many actions as frames: the last one is unused
        frames, notes = self._frames(path, content, fields, length)
        notes = (*notes, *_unused_note(content, config))
        fps = config.fps or probe_video(next(iter(frames.values())).path).fps
        if actions is None:
            assert states is not None
            actions, notes = states[1:], (*notes, "the action is the next state")
        texts = _texts(path, content, config.text_key or "texts")
        episode = Episode(
            uid="/".join(fields.values()) or PurePosixPath(name).stem,
            source=str(path),
            frames=frames,
            robot_actions=actions[: length - 1],
            action_names=_numbered(actions.shape[1], "action"),
            fps=fps,
            embodiment=self.name,
            task=texts[0] if texts else "",
            robot_states=states,
            state_names=() if states is None else _numbered(states.shape[1], "state"),
            instructions=texts,
            notes=notes,
            action_space=self.action_space,
            delta_actions=None if config.action_keys else (),
        )
        return relabeled(episode, config)

    def _frames(
        self, path: Path, content: Mapping[str, Any], fields: Mapping[str, str], length: int
    ) -> tuple[dict[str, VideoFrames], tuple[str, ...]]:
        videos = dict(self._videos(fields))
        if not videos:
            raise ValueError(f"{path}: no video matches {self.config.video!r}")
        _check_listed(path, content.get(self.config.video_key), list(videos.values()))
        names = sorted(videos, key=natural_order)
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

    def _has_frames(self, fields: Mapping[str, str], count: int) -> bool:
        return all(len(probe_video(self.root / name).pts) == count for _, name in self._videos(fields))

    def _videos(self, fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        pattern = _filled(self.config.video, {field: _escape(value) for field, value in fields.items()})
        for name, found in _matches(self.root, pattern):
            yield found.get("camera", ONLY_CAMERA), name


Entries = list[tuple[str, dict[str, str]]]  # relative path of each annotation, and the fields of its name


def _resolved(root: Path, given: DataMapping, entries: Entries) -> DataMapping:
    """The mapping with every key and pattern filled in, from the first readable annotation."""
    place = "videos" if (root / "videos").is_dir() else "video"
    flat, nested = (pattern.replace("videos", place, 1) for pattern in (FLAT, NESTED))
    video = given.video or (flat if (root / _filled(flat, entries[0][1])).is_file() else nested)
    mapping = replace(given, video=video)
    if mapping.action_keys is not None and mapping.state_keys is not None:
        return mapping
    name, content = _first_readable(root, entries)
    if mapping.action_keys is not None:
        return replace(mapping, state_keys=("states",) if "states" in content else ())
    if mapping.state_keys is not None:
        return replace(mapping, action_keys=())
    is_plain = given.annotation.startswith("{id}.")
    if is_plain and (actions := _parts("action", content)):
        names = mapping.action_names or (actions if name.endswith(".csv") else ())
        return replace(mapping, action_keys=actions, state_keys=_parts("state", content), action_names=names)
    for layout in PLAIN_LAYOUTS if is_plain else LAYOUTS:
        keys = (*(layout.state_keys or ()), *(layout.action_keys or ()))
        if all(key in content for key in keys):
            return _as_layout(mapping, layout, root / name, content)
    found = ", ".join(content)
    raise ValueError(
        f"{root / name}: keys {found} are of no known layout; map them in {MAPPING_FILE}: action_keys: [...]"
    )


def _flat_mapping(root: Path) -> DataMapping | None:
    """The mapping of a folder where videos and annotations share their names; None for other folders."""
    for video in sorted(root.glob("*.mp4"))[:1]:
        for suffix in SUFFIXES:
            if video.with_suffix(suffix).is_file():
                return DataMapping(annotation=f"{{id}}{suffix}", video="{id}.mp4")
    return None


def _parts(word: str, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns such as action_0 or action.x, in file order, used if there is no single column."""
    if any(key in content for key in (word, f"{word}s", ARRAY)):
        return ()
    return tuple(key for key in content if re.fullmatch(rf"{word}s?[._/].+", key))


def _unused_note(content: Mapping[str, Any], config: DataMapping) -> list[str]:
    """A note on columns of a flat folder that are neither action nor state, such as a gripper."""
    known = {*(config.action_keys or ()), *(config.state_keys or ()), config.length_key, config.text_key}
    rest = [key for key in content if key not in known] if config.annotation.startswith("{id}.") else []
    return [f"columns not used: {', '.join(rest[:12])} (mapping: action_keys, state_keys)"] if rest else []


def _as_layout(
    mapping: DataMapping, layout: DataMapping, path: Path, content: Mapping[str, Any]
) -> DataMapping:
    names = mapping.action_names
    if layout.action_keys and not names:
        width = _columns(path, content, layout.action_keys).shape[1]
        names = layout.action_names if len(layout.action_names) == width else ()
    return replace(
        mapping,
        state_keys=layout.state_keys,
        action_keys=layout.action_keys,
        action_names=names,
        action_space=mapping.action_space or layout.action_space,
    )


def _first_readable(root: Path, entries: Entries) -> tuple[str, Mapping[str, Any]]:
    for name, _ in entries[:-1]:
        with contextlib.suppress(ValueError):
            return name, read_annotation(root / name)
    return entries[-1][0], read_annotation(root / entries[-1][0])


def _check_apart(root: Path, mapping: DataMapping, entries: Entries) -> None:
    """Refuse a video pattern that gives two episodes the same videos."""
    fields = [name for name in entries[0][1] if f"{{{name}}}" in mapping.video]
    seen: dict[tuple[str, ...], str] = {}
    for name, values in entries:
        first = seen.setdefault(tuple(values[field] for field in fields), name)
        if first != name:
            missing = ", ".join(f"{{{field}}}" for field in values if field not in fields)
            raise ValueError(
                f"{root}: {first} and {name} would get the same videos: the video pattern {mapping.video!r} "
                f"lacks {missing} of the annotation pattern {mapping.annotation!r}"
            )


def _filled(pattern: str, fields: Mapping[str, str]) -> str:
    for field, value in fields.items():
        pattern = pattern.replace(f"{{{field}}}", value)
    return pattern


def _matches(root: Path, pattern: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(relative path, fields) of the files that fit a pattern with {fields}."""
    regex = re.compile(FIELD.sub(r"(?P<\1>[^/]+)", re.escape(pattern.replace("[[]", "["))))
    for path in root.glob(re.sub(r"\{\w+\}", "*", pattern)):
        name = path.relative_to(root).as_posix()
        if (match := regex.fullmatch(name)) and path.is_file():
            yield name, match.groupdict()


def _escape(value: str) -> str:
    """Escape brackets in file names for glob."""
    return value.replace("[", "[[]")


def _columns(path: Path, content: Mapping[str, Any], keys: tuple[str, ...]) -> Float64[np.ndarray, "t d"]:
    """The arrays of these keys concatenated, all finite and of one length."""
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
    except (TypeError, ValueError, OverflowError) as error:  # a whole number of hundreds of digits
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
    config: DataMapping,
    states: Float[np.ndarray, "t s"] | None,
    actions: Float[np.ndarray, "n a"] | None,
) -> int:
    """T, from the states, else from the declared length or the actions (T or T - 1 rows)."""
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
    """Check that the videos listed in the annotation were all found."""
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


def _numbered(width: int, word: str) -> tuple[str, ...]:
    return tuple(f"{word}_{index}" for index in range(width))
