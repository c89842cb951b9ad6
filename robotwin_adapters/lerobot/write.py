"""Episodes -> a LeRobot v3.0 folder: parquet and H.264 files of many episodes each, and statistics."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Num, UInt8

from robotwin_adapters.lerobot.dataset import LED_BY_ROW
from robotwin_adapters.lerobot.meta import INFO, OWN_FILE, V3_DATA, V3_VIDEO, fill_path
from robotwin_adapters.lerobot.rows import ACTION, STATE
from worldmodel.data.action_spaces import describe_action_space
from worldmodel.data.video import write_video
from worldmodel.files import new_folder
from worldmodel.types import Episode, EpisodeSource, evenly_spread

CHUNK_SIZE = 1000  # files in one chunk folder
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
STATS_FRAMES = 32  # of an episode, for the statistics of the pictures
Stats = dict[str, np.ndarray]


@dataclass
class _Contents:
    """What has been written so far."""

    first: Episode  # the others must match it
    fps: int
    features: dict[str, dict[str, Any]]
    tasks: dict[str, int] = field(default_factory=dict)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    stats: list[dict[str, Stats]] = field(default_factory=list)
    uids: list[str] = field(default_factory=list)
    num_frames: int = 0


def write_lerobot(source: EpisodeSource, out: str | Path, *, episodes_per_file: int = 50) -> int:
    """Write all episodes as a new dataset at `out`, atomically; returns their number."""
    if len(source) == 0 or episodes_per_file < 1:
        raise ValueError(f"{source.name}: at least one episode, and one episode per file, are needed")
    with new_folder(out) as building:
        first = source[0]
        contents = _Contents(first, max(1, round(first.fps)), _features(first))
        for file_number, start in enumerate(range(0, len(source), episodes_per_file)):
            positions = range(start, min(start + episodes_per_file, len(source)))
            _write_file(building, source, positions, file_number, contents)
        _write_meta(building, contents)
    return len(source)


def _features(first: Episode) -> dict[str, dict[str, Any]]:
    """The `features` of info.json, the same for all episodes."""
    vectors = {ACTION: (first.robot_actions, first.action_names)}
    if first.robot_states is not None:
        vectors[STATE] = (first.robot_states, first.state_names)
    features: dict[str, dict[str, Any]] = {
        key: {"dtype": str(values.dtype), "shape": [values.shape[1]], "names": list(names) or None}
        for key, (values, names) in vectors.items()
    }
    for camera, reader in first.frames.items():
        height, width = reader.size
        features[f"observation.images.{camera}"] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": height,
                "video.width": width,
                "video.channels": 3,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": max(1, round(first.fps)),
                "has_audio": False,
            },
        }
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for key in ("frame_index", "episode_index", "index", "task_index"):
        features[key] = {"dtype": "int64", "shape": [1], "names": None}
    return features


def _write_file(
    root: Path, source: EpisodeSource, positions: range, file_number: int, contents: _Contents
) -> None:
    """Write one data file and one video per camera with the episodes at these positions."""
    place = {"chunk_index": file_number // CHUNK_SIZE, "file_index": file_number % CHUNK_SIZE}
    data = root / V3_DATA.format(**place)
    data.parent.mkdir(parents=True, exist_ok=True)
    writer, start_frame = None, 0
    for position in positions:
        episode = source[position]
        _check_fits(episode, contents)
        table = _episode_table(episode, contents)
        # One row group per episode, so that a reader of one episode reads no other.
        writer = writer or pq.ParquetWriter(data, table.schema, write_page_checksum=True)
        writer.write_table(table, row_group_size=episode.num_frames)
        _note_episode(episode, table, place, start_frame, contents)
        start_frame += episode.num_frames
    assert writer is not None, positions
    writer.close()
    for camera in contents.first.frames:
        key = f"observation.images.{camera}"
        video = root / fill_path(V3_VIDEO, Path(contents.first.source), video_key=key, **place)
        write_video(video, _camera_frames(source, positions, camera), contents.fps)


def _camera_frames(
    source: EpisodeSource, positions: range, camera: str
) -> Iterator[UInt8[np.ndarray, "H W 3"]]:
    for position in positions:
        reader = source[position].frames[camera]
        for start in range(0, len(reader), 32):
            yield from reader.read(range(start, min(start + 32, len(reader))))


def _check_fits(episode: Episode, contents: _Contents) -> None:
    if episode.action_space != contents.first.action_space:
        raise ValueError(
            f"{episode.source}: {describe_action_space(episode.action_space)}; a dataset has one kind of "
            f"actions, here {describe_action_space(contents.first.action_space)}"
        )
    if (episode.fps, episode.embodiment) != (contents.first.fps, contents.first.embodiment):
        raise ValueError(
            f"{episode.source}: {episode.embodiment} at {episode.fps:.4g} fps; a dataset has one robot and "
            f"rate, here {contents.first.embodiment} at {contents.first.fps:.4g} fps"
        )
    if (found := _features(episode)) != contents.features:
        keys = [key for key in {*found, *contents.features} if found.get(key) != contents.features.get(key)]
        raise ValueError(f"{episode.source}: {', '.join(sorted(keys))} not as in {contents.first.source}")
    for camera, reader in episode.frames.items():
        if len(reader) != episode.num_frames:
            raise ValueError(f"{episode.source}: camera {camera} has {len(reader)} frames")


def _episode_table(episode: Episode, contents: _Contents) -> pa.Table:
    count = episode.num_frames
    # LeRobot needs an action for every frame; the last one is unused and repeats the one before.
    actions = np.concatenate([episode.robot_actions, episode.robot_actions[-1:]])
    columns: dict[str, pa.Array] = {ACTION: _vector_column(actions)}
    if episode.robot_states is not None:
        columns[STATE] = _vector_column(episode.robot_states)
    frame = np.arange(count)
    task = contents.tasks.setdefault(_task(episode), len(contents.tasks))
    columns["timestamp"] = pa.array((frame / contents.fps).astype(np.float32))
    columns["frame_index"] = pa.array(frame)
    columns["episode_index"] = pa.array(np.full(count, len(contents.episodes)))
    columns["index"] = pa.array(frame + contents.num_frames)
    columns["task_index"] = pa.array(np.full(count, task))
    return pa.table(columns)


def _task(episode: Episode) -> str:
    return episode.instructions[0] if episode.instructions else episode.task


def _vector_column(values: Float[np.ndarray, "t d"]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).ravel()), values.shape[1])


def _note_episode(
    episode: Episode, table: pa.Table, place: Mapping[str, int], start_frame: int, contents: _Contents
) -> None:
    """Add the row of the episode table."""
    count = episode.num_frames
    row: dict[str, Any] = {
        "episode_index": len(contents.episodes),
        "tasks": [_task(episode)],
        "length": count,
        **{f"data/{key}": value for key, value in place.items()},
        "dataset_from_index": contents.num_frames,
        "dataset_to_index": contents.num_frames + count,
    }
    for camera in episode.frames:
        prefix = f"videos/observation.images.{camera}"
        row |= {f"{prefix}/{key}": value for key, value in place.items()}
        row[f"{prefix}/from_timestamp"] = start_frame / contents.fps
        row[f"{prefix}/to_timestamp"] = (start_frame + count) / contents.fps
    row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
    stats = _episode_stats(episode, table)
    row |= {f"stats/{key}/{name}": v.tolist() for key, part in stats.items() for name, v in part.items()}
    contents.episodes.append(row)
    contents.uids.append(episode.uid)
    contents.stats.append(stats)
    contents.num_frames += count


def _episode_stats(episode: Episode, table: pa.Table) -> dict[str, Stats]:
    stats = {}
    for key in table.column_names:
        values = table[key].combine_chunks()
        flat = values.flatten() if pa.types.is_fixed_size_list(values.type) else values
        stats[key] = column_stats(flat.to_numpy().reshape(table.num_rows, -1))
    for camera, reader in episode.frames.items():
        frames = reader.read(evenly_spread(len(reader), STATS_FRAMES))
        stats[f"observation.images.{camera}"] = picture_stats(frames)
    return stats


def picture_stats(frames: UInt8[np.ndarray, "n H W 3"]) -> Stats:
    """Statistics of each color channel, in [0, 1]."""
    part = column_stats(frames.reshape(-1, 3) / 255.0)
    part = {name: value.reshape(3, 1, 1) for name, value in part.items() if name != "count"}
    return {**part, "count": np.array([len(frames)])}


def column_stats(values: Num[np.ndarray, "n d"] | Bool[np.ndarray, "n d"]) -> Stats:
    """Extremes, moments and quantiles of each dimension."""
    values = values.astype(np.float64)
    quantiles = np.quantile(values, list(QUANTILES.values()), axis=0)
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "count": np.array([len(values)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


def joined_stats(parts: list[Stats]) -> Stats:
    """Statistics over all episodes.

    Quantiles are the weighted mean of the episodes' quantiles, as in LeRobot.
    """
    counts = np.array([part["count"][0] for part in parts], dtype=np.float64)
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0] if name != "count"}
    weights = (counts / counts.sum()).reshape(-1, *[1] * (stacked["mean"].ndim - 1))
    mean = (weights * stacked["mean"]).sum(axis=0)
    variance = (weights * (stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2)).sum(axis=0)
    joined = {name: (weights * stacked[name]).sum(axis=0) for name in QUANTILES}
    return {
        "min": stacked["min"].min(axis=0),
        "max": stacked["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": np.array([int(counts.sum())]),
        **joined,
    }


def _write_meta(root: Path, contents: _Contents) -> None:
    episode_files(root, contents.episodes, task_table(contents.tasks))
    stats = {key: joined_stats([part[key] for part in contents.stats]) for key in contents.stats[0]}
    plain = {key: {name: v.tolist() for name, v in part.items()} for key, part in stats.items()}
    (root / "meta/stats.json").write_text(json.dumps(plain, indent=4))
    first = contents.first
    info = {
        "codebase_version": "v3.0",
        "robot_type": first.embodiment,
        "total_episodes": len(contents.episodes),
        "total_frames": contents.num_frames,
        "total_tasks": len(contents.tasks),
        "chunks_size": CHUNK_SIZE,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": contents.fps,
        "splits": {"train": f"0:{len(contents.episodes)}"},
        "data_path": V3_DATA,
        "video_path": V3_VIDEO,
        "features": contents.features,
    }
    (root / INFO).write_text(json.dumps(info, indent=4))
    # LeRobot stores integer frame rates; the exact rate and the meaning of action rows go elsewhere.
    own: dict[str, Any] = {
        "recorded_fps": first.fps,
        "actions": LED_BY_ROW,
        "action_space": first.action_space,
        "uids": contents.uids,
    }
    if first.delta_actions is not None:
        own["action_deltas"] = list(first.delta_actions)
    (root / OWN_FILE).write_text(json.dumps(own, indent=4))


def episode_files(root: Path, rows: list[dict[str, Any]], tasks: pa.Table) -> None:
    """Write the tables of episodes and of tasks."""
    episodes = root / "meta/episodes/chunk-000/file-000.parquet"
    episodes.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), episodes, write_page_checksum=True)
    pq.write_table(tasks, root / "meta/tasks.parquet", write_page_checksum=True)


def task_table(tasks: Mapping[str, int]) -> pa.Table:
    """The table of tasks; its metadata makes the text the index of a pandas frame."""
    table = pa.table(
        {"task_index": pa.array(tasks.values(), pa.int64()), "task": pa.array(tasks, pa.string())}
    )
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}
        for name, kind, numpy_kind in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": columns,
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
