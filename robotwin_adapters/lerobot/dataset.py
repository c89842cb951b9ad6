"""LeRobot datasets v2.0, v2.1 and v3.0 -> Episode: numbers from parquet, frames from mp4 or PNGs in it.

A dataset has T rows of `action` and T frames. Row i leads from frame i to frame i + 1; the last row is unused
and dropped:

    frame    0   1   2   3        observation.state  s0  s1  s2  s3
    action     a0  a1  a2  (a3)   if a[t] == s[t], the rows are targets already reached: shift by one
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from robotwin_adapters.lerobot.columns import VectorKeys, column_names, find_keys, usable_cameras
from robotwin_adapters.lerobot.meta import INFO, EpisodeRow, LerobotMeta, read_meta
from robotwin_adapters.lerobot.rows import (
    episode_rows,
    joined_vectors,
    late_start,
    open_images,
    uneven_times,
)
from robotwin_adapters.mapping import DataMapping, read_mapping, relabeled
from worldmodel.data.action_spaces import check_action_space
from worldmodel.data.video import VideoFrames, open_video, probe_video
from worldmodel.types import Episode, FrameReader

LED_BY_ROW = "row i leads from frame i to frame i + 1"  # statement in info.json files that we write
RATE_TOLERANCE = 0.01  # relative difference of the rates in a video and in info.json


def is_lerobot(path: str | Path) -> bool:
    """Whether the folder contains a LeRobot info.json."""
    return (Path(path) / INFO).is_file()


class LerobotDataset:
    """Episodes of one LeRobot folder; `camera` (a key, a name or the end of one) keeps only that camera."""

    def __init__(
        self,
        path: str | Path,
        *,
        camera: str | None = None,
        mapping: str | Path | None = None,  # YAML of DataMapping
        verify: bool = True,
    ) -> None:
        self.meta: LerobotMeta = read_meta(path)
        self.mapping = read_mapping(Path(path), mapping) or DataMapping()
        self.verify = verify
        self.name = Path(path).resolve().name
        self.format = f"LeRobot {self.meta.version}"
        # Only our own writer states it: a state may be measured or the last command.
        self.action_space = check_action_space(
            self.mapping.action_space or str(self.meta.extra.get("action_space", ""))
        )
        self.keys: VectorKeys = find_keys(self.meta, self.mapping)
        cameras, self.notes = usable_cameras(self.meta, self.mapping)
        self.cameras = cameras if camera is None else _chosen(self.meta, cameras, camera)

    def __len__(self) -> int:
        return len(self.meta.episodes)

    def __getitem__(self, index: int) -> Episode:
        row, meta, keys = self.meta.episodes[index], self.meta, self.keys
        path = Path(meta.root) / row.data_file
        table = episode_rows(path, meta, row, self.cameras, (*keys.action, *keys.state))
        actions = joined_vectors(path, table, meta.features, keys.action)
        states = joined_vectors(path, table, meta.features, keys.state) if keys.state else None
        led, note = _align(actions, states, meta.extra.get("actions") == LED_BY_ROW)
        instructions = _instructions(table, meta, row)
        frames, notes = self._all_frames(row)
        late = filter(None, [late_start(path, table, meta.fps)])
        deltas = meta.extra.get("action_deltas")
        episode = Episode(
            uid=self._uid(row.index),
            source=str(path),
            frames=frames,
            robot_actions=led,
            action_names=column_names(meta, keys.action, "action"),
            fps=float(meta.extra.get("recorded_fps", meta.fps)),
            embodiment=meta.robot_type,
            task=instructions[0] if instructions else "",
            robot_states=states,
            state_names=column_names(meta, keys.state, "state"),
            instructions=instructions,
            notes=(*self.notes, *keys.notes, *notes, note, *late),
            action_space=self.action_space,
            delta_actions=tuple(map(str, deltas)) if isinstance(deltas, list) else None,
            frame_times=uneven_times(path, table, meta.fps),
        )
        return relabeled(episode, self.mapping)

    def _uid(self, number: int) -> str:
        """The name before a conversion, if our own writer noted it: splits depend on it."""
        uids = self.meta.extra.get("uids", ())
        return uids[number] if number < len(uids) else f"episode_{number:06d}"

    def _all_frames(self, row: EpisodeRow) -> tuple[dict[str, FrameReader], tuple[str, ...]]:
        """The cameras' frames, and notes on frames that were cut."""
        frames, notes = {name: self._frames(key, row) for name, key in self.cameras.items()}, []
        for name, reader in frames.items():
            if self.meta.version == "v3.0" or not isinstance(reader, VideoFrames):
                continue
            video = probe_video(reader.path)
            if extra := len(video.pts) - row.length:
                notes.append(f"camera {name}: {extra} frame(s) more than rows, cut from the end")
            if abs(video.fps / self.meta.fps - 1) > RATE_TOLERANCE:
                rates = f"{video.fps:.4g} frames per second, info.json says {self.meta.fps:.4g}"
                notes.append(f"camera {name}: the video has {rates}; frames are taken by their number")
        return frames, tuple(notes)

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
            if abs(probe_video(path).fps / self.meta.fps - 1) > RATE_TOLERANCE:
                raise ValueError(
                    f"{path}: {probe_video(path).fps:.4g} fps, info.json says {self.meta.fps:.4g}"
                )
            offset = round(start * self.meta.fps)
            return open_video(path, offset=offset, length=row.length, verify=self.verify)
        found = len(probe_video(path).pts)
        if not 0 <= found - row.length <= self.mapping.max_extra_frames:
            raise ValueError(f"{path}: {found} frames, expected {row.length} as in {row.data_file}")
        return open_video(path, length=row.length, verify=self.verify)


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
    """The T - 1 actions that lead from frame to frame, and the reason for the alignment."""
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
    """The texts of the rows' task_index if the task table has them, else those of the episode table."""
    if "task_index" in table.column_names:
        indices = dict.fromkeys(index for index in table["task_index"].to_pylist() if index in meta.tasks)
        if indices:
            return tuple(meta.tasks[index] for index in indices)
    return row.tasks
