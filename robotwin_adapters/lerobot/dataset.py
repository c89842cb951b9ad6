"""LeRobot datasets v2.0, v2.1 and v3.0 -> Episode: numbers from parquet, frames from mp4 or PNGs in it.

A dataset has T rows of `action` and T frames. Row i is taken to lead from frame i to frame i + 1, the last
row leads nowhere and is dropped:

    frame    0   1   2   3        observation.state  s0  s1  s2  s3
    action     a0  a1  a2  (a3)   if a[t] == s[t], the rows are targets already reached: shift by one
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from robotwin_adapters.camera_order import overview_first
from robotwin_adapters.lerobot.meta import INFO, EpisodeRow, LerobotMeta, read_json, read_meta
from robotwin_adapters.lerobot.rows import ACTION, STATE, episode_rows, open_images, vectors
from worldmodel.data.action_spaces import current_action_space
from worldmodel.data.video import open_video, probe_video
from worldmodel.types import Episode, FrameReader

NUMBERED = re.compile(r"(motor|action|state|dim)?_?\d*")  # names that only count the columns
LED_BY_ROW = "row i leads from frame i to frame i + 1"  # what our own writer promises in info.json


def is_lerobot(path: str | Path) -> bool:
    """Whether the folder looks like a LeRobot dataset."""
    return (Path(path) / INFO).is_file()


class LerobotDataset:
    """Episodes of one LeRobot folder; `camera` (a key, a name or the end of one) limits it to one camera."""

    def __init__(self, path: str | Path, *, camera: str | None = None, verify: bool = True) -> None:
        self.meta: LerobotMeta = read_meta(path)
        self.verify = verify
        self.name = Path(path).resolve().name
        self.format = f"LeRobot {self.meta.version}"
        # Only our own writer states it: a state may be a measured one or the last command.
        self.action_space = current_action_space(str(self.meta.extra.get("action_space", "")))
        cameras, self.notes = _usable_cameras(self.meta)
        self.cameras = cameras if camera is None else _chosen(self.meta, cameras, camera)

    def __len__(self) -> int:
        return len(self.meta.episodes)

    def __getitem__(self, index: int) -> Episode:
        row, meta = self.meta.episodes[index], self.meta
        path = Path(meta.root) / row.data_file
        table = episode_rows(path, meta, row, self.cameras)
        actions = vectors(path, table, meta.features, ACTION)
        states = vectors(path, table, meta.features, STATE) if STATE in meta.features else None
        led, note = _align(actions, states, meta.extra.get("actions") == LED_BY_ROW)
        instructions = _instructions(table, meta, row)
        return Episode(
            uid=f"episode_{row.index:06d}",
            source=str(path),
            frames={name: self._frames(key, row) for name, key in self.cameras.items()},
            robot_actions=led,
            action_names=_names(meta, ACTION, "action"),
            fps=float(meta.extra.get("recorded_fps", meta.fps)),
            embodiment=meta.robot_type,
            task=instructions[0] if instructions else "",
            robot_states=states,
            state_names=_names(meta, STATE, "state") if states is not None else (),
            instructions=instructions,
            notes=(*self.notes, note),
            action_space=self.action_space,
        )

    def _frames(self, key: str, row: EpisodeRow) -> FrameReader:
        meta, feature = self.meta, self.meta.features[key]
        root = Path(meta.root)
        if feature.dtype == "image":
            reader: FrameReader = open_images(root / row.data_file, key, row, self.verify)
        else:
            reader = self._video(root, key, row)
        declared = feature.frame_size()
        if declared is not None and reader.size != declared:
            raise ValueError(
                f"{root / row.data_file}: camera {key!r} is {reader.size}, info.json says {declared} (H, W)"
            )
        return reader

    def _video(self, root: Path, key: str, row: EpisodeRow) -> FrameReader:
        if key not in row.videos:
            raise ValueError(f"{root}: episode {row.index} has no video {key!r}")
        name, start = row.videos[key]
        path = root / name
        if self.meta.version == "v3.0":
            if abs(probe_video(path).fps / self.meta.fps - 1) > 0.01:
                raise ValueError(
                    f"{path}: {probe_video(path).fps:.4g} fps, info.json says {self.meta.fps:.4g}"
                )
            offset = round(start * self.meta.fps)
            return open_video(path, offset=offset, length=row.length, verify=self.verify)
        found = len(probe_video(path).pts)
        if found != row.length:
            raise ValueError(f"{path}: {found} frames, expected {row.length} as in {row.data_file}")
        return open_video(path, verify=self.verify)


def _usable_cameras(meta: LerobotMeta) -> tuple[dict[str, str], tuple[str, ...]]:
    """Short name -> feature key of the cameras that exist, overview first, and what was left out."""
    notes, usable = [], []
    for key, feature in meta.features.items():
        if feature.dtype not in ("video", "image"):
            continue
        if feature.is_depth:
            notes.append(f"camera {key} left out: depth maps")
        elif feature.dtype == "video" and not any(_has_file(meta, row, key) for row in meta.episodes):
            notes.append(f"camera {key} left out: declared in info.json, but its files do not exist")
        else:
            usable.append(key)
    if not usable:
        raise ValueError(f"{meta.root}/{INFO}: no usable camera ({'; '.join(notes) or 'none declared'})")
    short = {key: key.rsplit("images.", 1)[-1] for key in usable}
    if len(set(short.values())) < len(short):
        short = {key: key for key in usable}
    keys = {name: key for key, name in short.items()}
    return {name: keys[name] for name in overview_first(keys)}, tuple(notes)


def _has_file(meta: LerobotMeta, row: EpisodeRow, key: str) -> bool:
    return key in row.videos and (Path(meta.root) / row.videos[key][0]).is_file()


def _chosen(meta: LerobotMeta, cameras: Mapping[str, str], camera: str) -> dict[str, str]:
    for matches in (
        lambda name, key: camera in (name, key),
        lambda name, key: key.endswith(camera),
    ):
        found = {name: key for name, key in cameras.items() if matches(name, key)}
        if len(found) == 1:
            return found
    raise ValueError(f"{meta.root}: no one camera {camera!r}, the dataset has {', '.join(cameras)}")


def _align(
    actions: Float[np.ndarray, "t a"], states: Float[np.ndarray, "t s"] | None, is_led: bool
) -> tuple[Float[np.ndarray, "t-1 a"], str]:
    """The T - 1 actions that lead from frame to frame, and the reason in words."""
    if is_led or states is None or states.shape != actions.shape:
        why = "as its writer states" if is_led else "no state of the same width to compare with"
        return actions[:-1], f"action[t] is taken to lead from frame t to t+1 ({why})"
    same = float(np.abs(actions - states).mean())
    following = float(np.abs(actions[:-1] - states[1:]).mean())
    scale = 1e-6 * (1 + float(np.abs(states).mean()))
    if following <= scale:
        return actions[:-1], "action[t] equals the next state state[t+1]"
    if same <= scale:
        return actions[1:], "action[t] equals state[t]: shifted by one, so that action i leads to frame i+1"
    closer = "state[t+1]" if following < same else "state[t]"
    note = f"action[t] is a command of its own, closer to {closer}; taken to lead from frame t to t+1"
    return actions[:-1], note


def _instructions(table: pa.Table, meta: LerobotMeta, row: EpisodeRow) -> tuple[str, ...]:
    """The texts of the rows' task_index where the task table has them, else those of the episode table."""
    if "task_index" in table.column_names:
        indices = dict.fromkeys(index for index in table["task_index"].to_pylist() if index in meta.tasks)
        if indices:
            return tuple(meta.tasks[index] for index in indices)
    return row.tasks


def _names(meta: LerobotMeta, key: str, word: str) -> tuple[str, ...]:
    feature = meta.features[key]
    width = int(np.prod(feature.shape)) if feature.shape else 1
    names = feature.names if len(feature.names) == width else ()
    # "motor_7" or "action_7" says nothing; modality.json, where present, tells the body part.
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
