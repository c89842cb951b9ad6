"""Which columns of a LeRobot dataset are actions, states and cameras, and the names of their dimensions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from robotwin_adapters.camera_order import overview_first
from robotwin_adapters.lerobot.meta import INFO, EpisodeRow, Feature, LerobotMeta, read_json
from robotwin_adapters.lerobot.rows import ACTION, COUNTERS, STATE
from robotwin_adapters.mapping import DataMapping, matching_keys

NUMBERED = re.compile(r"(motor|action|state|dim)?_?\d*")  # names that only number the columns
ACTION_KEYS = (ACTION, "actions")  # LeRobot's name, then openpi's
STATE_KEYS = (STATE, "state", "observation/state")
PLACE = re.compile(r".*images[./]")  # prefix that a camera's short name omits
PICTURES = ("video", "image")


@dataclass(frozen=True)
class VectorKeys:
    """The columns whose concatenation is the action, and those of the state."""

    action: tuple[str, ...]
    state: tuple[str, ...]  # empty: no states
    notes: tuple[str, ...] = ()  # notes on the decisions


def find_keys(meta: LerobotMeta, mapping: DataMapping) -> VectorKeys:
    """The mapping's columns, else those of LeRobot or openpi; a dataset without an action is refused."""
    where, columns = f"{meta.root}/{INFO}", _vector_columns(meta)
    if mapping.state_keys is not None:
        state = matching_keys(where, mapping.state_keys, columns)
    else:
        state = next(((key,) for key in STATE_KEYS if key in columns), ())
    if mapping.action_keys == ():
        raise ValueError(f"{where}: action_keys is [], but a LeRobot dataset has actions; leave it out")
    if mapping.action_keys is not None:
        return VectorKeys(matching_keys(where, mapping.action_keys, columns), state)
    action = next((key for key in ACTION_KEYS if key in columns), None)
    if action is None:
        close = [key for key in columns if "action" in key.lower()] or columns
        raise ValueError(
            f"{where}: no feature {ACTION!r}. Name the columns of the action in a mapping (data.mapping, "
            f"--mapping, or dataset.yaml in the folder): action_keys: [{', '.join(close)}], or those of them "
            "that are commands"
        )
    named = (key for key in (action, *state) if key not in (ACTION, STATE))
    notes = tuple(f"column {key!r} taken by its name" for key in named)
    return VectorKeys((action,), state, notes)


def _vector_columns(meta: LerobotMeta) -> list[str]:
    return [
        key
        for key, feature in meta.features.items()
        if feature.dtype not in (*PICTURES, "string") and key not in COUNTERS
    ]


def column_names(meta: LerobotMeta, keys: Sequence[str], word: str) -> tuple[str, ...]:
    """One name per dimension of the concatenated columns; for several columns, prefixed by the column."""
    if len(keys) == 1:
        return _names(meta, keys[0], word)
    parts = [_names(meta, key, key.removeprefix("observation.")) for key in keys]
    return tuple(name for part in parts for name in part)


def usable_cameras(meta: LerobotMeta, mapping: DataMapping) -> tuple[dict[str, str], tuple[str, ...]]:
    """Short name -> feature key of the existing cameras, overview first, and notes on skipped ones."""
    notes, usable = [], []
    for key, feature in _pictures(meta, mapping):
        if feature.is_depth or ("depth" in key.lower() and 1 in (feature.shape[:1] + feature.shape[-1:])):
            notes.append(f"camera {key} left out: depth maps")
        elif feature.dtype == "video" and not any(_has_file(meta, row, key) for row in meta.episodes):
            notes.append(f"camera {key} left out: declared in info.json, but its files do not exist")
        else:
            usable.append(key)
    if not usable:
        raise ValueError(f"{meta.root}/{INFO}: no usable camera ({'; '.join(notes) or 'none declared'})")
    given = dict(zip(mapping.camera_keys, mapping.cameras, strict=False))
    short = {key: given.get(key, PLACE.sub("", key)) for key in usable}
    if len(set(short.values())) < len(short):
        short = {key: key for key in usable}
    keys = {name: key for key, name in short.items()}
    return {name: keys[name] for name in overview_first(keys)}, tuple(notes)


def _pictures(meta: LerobotMeta, mapping: DataMapping) -> Iterable[tuple[str, Feature]]:
    """The cameras that the mapping names, or all of them."""
    pictures = {key: feature for key, feature in meta.features.items() if feature.dtype in PICTURES}
    if not mapping.camera_keys:
        return pictures.items()
    # A set may lack some of the cameras, but not all of them.
    there = [name for name in mapping.camera_keys if any(fnmatchcase(key, name) for key in pictures)]
    keys = matching_keys(f"{meta.root}/{INFO}", there or mapping.camera_keys, pictures)
    return [(key, pictures[key]) for key in keys]


def _has_file(meta: LerobotMeta, row: EpisodeRow, key: str) -> bool:
    return key in row.videos and (Path(meta.root) / row.videos[key][0]).is_file()


def _names(meta: LerobotMeta, key: str, word: str) -> tuple[str, ...]:
    feature = meta.features[key]
    width = int(np.prod(feature.shape)) if feature.shape else 1
    names = feature.names if len(feature.names) == width else ()
    # "motor_7" or "action_7" is not informative; modality.json, if present, names the body part.
    if all(NUMBERED.fullmatch(name) for name in names):
        names = _modality_names(meta, word, width) or names
    return names or tuple(f"{word}_{index}" for index in range(width))


def _modality_names(meta: LerobotMeta, word: str, width: int) -> tuple[str, ...]:
    path = Path(meta.root) / "meta/modality.json"
    parts = read_json(path).get(word) if path.is_file() else None
    names = [""] * width
    for part, span in parts.items() if isinstance(parts, dict) else ():
        start, end = (span.get("start"), span.get("end")) if isinstance(span, dict) else (None, None)
        if not (type(start) is int and type(end) is int and 0 <= start < end <= width):
            raise ValueError(
                f"{path}: {word} part {part!r} is {span!r}, expected start and end in 0..{width}"
            )
        names[start:end] = [f"{part}_{index}" for index in range(end - start)]
    return tuple(names) if all(names) else ()
