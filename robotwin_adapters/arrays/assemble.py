"""Builds an Episode from named arrays and a mapping; the rules are the same for every such format.

frame 0 1 2 3 T pictures and states, T or T - 1 actions action a0 a1 a2 (a3) action i leads from frame i to i
+ 1; an action after the last frame is dropped
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from robotwin_adapters.arrays.mapping import KeyMapping, load_mapping
from robotwin_adapters.camera_order import overview_first
from worldmodel.types import Episode, FrameReader

BASE = "base_"  # prefix of the names of a mobile base's velocities
LED = "action[t] leads from frame t to t+1"
NEXT_STATE = "the action is the next state"
# arrays that mark the start or end of an episode, by the last part of their names
ENDS = (
    "done",
    "dones",
    "terminal",
    "terminals",
    "timeout",
    "timeouts",
    "truncated",
    "is_last",
    "is_terminal",
)
STARTS = ("is_first",)


Numbers = Mapping[str, Callable[[], ndarray]]  # arrays with one row per frame, read when called


@dataclass(frozen=True)
class NamedArrays:
    """The contents of one episode before the mapping is applied; arrays are read lazily."""

    uid: str
    source: str  # file named in error messages
    numbers: Numbers
    pictures: Mapping[str, Callable[[], FrameReader]]
    instructions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_whole_file: bool = False  # the file is one episode unless its end marks show several


class ArrayDataset:
    """Base class of datasets of named arrays; a format finds its episodes and reads one by its index."""

    format = ""  # in words

    def __init__(
        self,
        path: str | Path,
        *,
        camera: str | None = None,  # keep this camera only
        mapping: str | Path | None = None,  # YAML of DataMapping
        verify: bool = True,  # decode videos once if the format has them
    ) -> None:
        self.root, self.camera, self.verify = Path(path), camera, verify
        self.mapping = load_mapping(self.root, mapping)
        self.action_space = self.mapping.action_space
        resolved = self.root.resolve()
        self.name = resolved.stem if self.root.is_file() else resolved.name
        self.episodes = self._find()

    def __len__(self) -> int:
        return len(self.episodes)

    def _find(self) -> Sequence[Any]:
        """Where each episode is."""
        raise NotImplementedError


def build_episode(arrays: NamedArrays, keys: KeyMapping, camera: str | None = None) -> Episode:
    """Build the episode from its arrays and a complete mapping (defaults already filled in)."""
    where = arrays.source
    if not keys.fps > 0:
        raise ValueError(f"{where}: the files name no frames per second; set fps in the mapping")
    if arrays.is_whole_file:
        _check_one_episode(arrays)
    frames = _frames(arrays, keys, camera)
    states = _joined(arrays, keys.state_keys) if keys.state_keys else None
    actions = _joined(arrays, keys.action_keys) if keys.action_keys else None
    if states is None and actions is None:
        raise ValueError(
            f"{where}: no actions and no states among its arrays, {_listed(arrays.numbers)}; name them in "
            "action_keys of the mapping"
        )
    length = _length(where, frames, states, actions)
    note = LED
    if actions is None:
        assert states is not None
        actions, note = states[1:], NEXT_STATE
    action_names = keys.action_names or (() if keys.action_keys else keys.state_names)
    action_names = _names(where, action_names, actions.shape[1], "action")
    return Episode(
        uid=arrays.uid,
        source=where,
        frames=frames,
        robot_actions=actions[: length - 1],
        action_names=action_names,
        fps=keys.fps,
        embodiment=keys.embodiment,
        task=keys.task or (arrays.instructions[0] if arrays.instructions else ""),
        robot_states=states,
        state_names=() if states is None else _names(where, keys.state_names, states.shape[1], "state"),
        instructions=arrays.instructions,
        notes=(*arrays.notes, note),
        action_space=keys.action_space,
        delta_actions=_known_deltas(keys, action_names),
    )


def _check_one_episode(arrays: NamedArrays) -> None:
    """Refuse a file with an end mark in the middle: it holds several episodes, and clips would span them."""
    for key, read in arrays.numbers.items():
        word = key.rsplit("/", 1)[-1].lower()
        if word not in (*ENDS, *STARTS):
            continue
        values = np.atleast_1d(read())
        is_set = np.array([bool(np.any(row)) for row in values])
        rows = np.flatnonzero(is_set[1:] if word in STARTS else is_set[:-1] & ~is_set[1:])
        if rows.size:
            raise ValueError(
                f"{arrays.source}: {key!r} marks a border behind row {rows[0]}, so the file holds "
                f"{rows.size + 1} episodes. Write each into a file of its own. If it is one episode, leave "
                f"{key!r} out"
            )


def _known_deltas(keys: KeyMapping, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Joint commands and next states are absolute; only base velocities are deltas."""
    if keys.action_keys and keys.action_space != "joint_commands":
        return None
    return tuple(name for name in names if name.startswith(BASE))


def first_present(choices: tuple[tuple[str, ...], ...], known: Mapping[str, object]) -> tuple[str, ...]:
    """The first group of keys that are all present; empty if there is none."""
    return next((keys for keys in choices if all(key in known for key in keys)), ())


def _frames(arrays: NamedArrays, keys: KeyMapping, camera: str | None) -> dict[str, FrameReader]:
    wanted = tuple(key for key in keys.camera_keys if key in arrays.pictures) or tuple(arrays.pictures)
    if keys.camera_keys and not {*keys.camera_keys} & {*arrays.pictures}:
        raise ValueError(
            f"{arrays.source}: no pictures {', '.join(keys.camera_keys)}, it has {_listed(arrays.pictures)}"
        )
    if not wanted:
        raise ValueError(
            f"{arrays.source}: no pictures among its arrays, {_listed(arrays.numbers)}; "
            "a world model needs frames: name them in camera_keys of the mapping"
        )
    given = dict(zip(keys.camera_keys, keys.cameras, strict=False))
    names = tuple(given[key] for key in wanted) if given else keys.cameras or _short(wanted)
    shown = dict(zip(names, wanted, strict=True))
    chosen = overview_first(shown) if camera is None else [_one_of(arrays.source, camera, shown)]
    return {name: arrays.pictures[shown[name]]() for name in chosen}


def _short(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Last parts of the keys if they are unique, else the full keys."""
    last = tuple(key.rsplit("/", 1)[-1] for key in keys)
    return last if len(set(last)) == len(last) else keys


def _one_of(where: str, camera: str, shown: Mapping[str, str]) -> str:
    close = [name for name, key in shown.items() if camera in (name, key)]
    close = close or [name for name in shown if name.endswith(camera) or camera.endswith(f".{name}")]
    if len(close) != 1:
        raise ValueError(f"{where}: no one camera {camera!r}, it has {', '.join(shown)}")
    return close[0]


def _joined(arrays: NamedArrays, keys: tuple[str, ...]) -> Float[ndarray, "t d"]:
    parts = []
    for key in keys:
        if key not in arrays.numbers:
            raise ValueError(f"{arrays.source}: no array {key!r}, it has {_listed(arrays.numbers)}")
        parts.append(rows_of_numbers(arrays.source, key, arrays.numbers[key]()))
    lengths = [len(part) for part in parts]
    if len(set(lengths)) != 1:
        raise ValueError(f"{arrays.source}: {', '.join(keys)} have {lengths} rows, expected as many in each")
    return np.concatenate(parts, axis=1)


def rows_of_numbers(where: str, key: str, values: ndarray) -> Float[ndarray, "t d"]:
    """Finite floats, one row per frame; the other axes are flattened."""
    if values.dtype.kind not in "fiub" or values.ndim < 1 or values.size == 0:
        raise ValueError(f"{where}: {key!r} is {values.dtype} {values.shape}, expected rows of numbers")
    rows = values.reshape(len(values), -1)
    rows = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise ValueError(f"{where}: {key!r} has NaN or infinity in row {bad[0]}")
    return rows


def _length(
    where: str, frames: Mapping[str, FrameReader], states: ndarray | None, actions: ndarray | None
) -> int:
    """T; cameras, states and actions must agree on it."""
    lengths = {name: len(reader) for name, reader in frames.items()}
    length = next(iter(lengths.values()))
    if len(set(lengths.values())) != 1:
        raise ValueError(f"{where}: cameras have {lengths} frames, expected as many in each")
    if length < 2:
        raise ValueError(f"{where}: {length} frame(s), at least 2 are needed")
    if states is not None and len(states) != length:
        raise ValueError(f"{where}: {len(states)} states for {length} frames, expected as many")
    if actions is not None and len(actions) not in (length, length - 1):
        raise ValueError(f"{where}: {len(actions)} actions for {length} frames, expected as many or one less")
    return length


def _names(where: str, names: tuple[str, ...], width: int, word: str) -> tuple[str, ...]:
    if names and len(names) != width:
        raise ValueError(f"{where}: {width} {word} dimensions, {len(names)} names ({', '.join(names)})")
    return names or tuple(f"{word}_{index}" for index in range(width))


def _listed(names: Mapping[str, object], most: int = 20) -> str:
    shown = sorted(names)[:most]
    more = len(names) - len(shown)
    return (", ".join(shown) or "none") + (f" and {more} more" if more else "")
