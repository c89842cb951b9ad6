"""LeRobot v2.0, v2.1 or v3.0 -> v3.0 without loss: every column is kept, video files are copied."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robotwin_adapters.lerobot.columns import PICTURES
from robotwin_adapters.lerobot.dataset import LerobotDataset
from robotwin_adapters.lerobot.meta import (
    INFO,
    OWN_FILE,
    V3_DATA,
    V3_VIDEO,
    EpisodeRow,
    fill_path,
    read_table,
)
from robotwin_adapters.lerobot.rows import image_bytes
from robotwin_adapters.lerobot.write import (
    CHUNK_SIZE,
    STATS_FRAMES,
    Stats,
    column_stats,
    episode_files,
    joined_stats,
    picture_stats,
    task_table,
)
from worldmodel.checked import read_json
from worldmodel.files import new_folder
from worldmodel.types import Episode, evenly_spread

IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
V2_ONLY = ("total_videos", "total_chunks", "worldmodel")  # entries that v3.0 does not have


def copy_lerobot(dataset: LerobotDataset, positions: Sequence[int], out: str | Path) -> int:
    """Write these episodes as a new dataset at `out`, atomically; returns their number."""
    with new_folder(out) as building:
        copier = _Copier(dataset, building)
        for position in positions:
            copier.add(position)
        copier.finish()
    return len(positions)


class _Copier:
    """A dataset folder being written."""

    def __init__(self, dataset: LerobotDataset, root: Path) -> None:
        self.dataset, self.root = dataset, root
        self.info = read_json(Path(dataset.meta.root) / INFO)
        self.rows: list[dict[str, Any]] = []
        self.stats: list[dict[str, Stats]] = []
        self.uids: list[str] = []
        self.num_frames = 0
        self._videos: dict[tuple[str, str], int] = {}  # (key, file of the source) -> number of the copy

    def add(self, position: int) -> None:
        """Add one episode; it is opened first, so that a damaged one is refused."""
        row, episode = self.dataset.meta.episodes[position], self.dataset[position]
        table, place = self._table(row), _place(len(self.rows))
        data = self.root / V3_DATA.format(**place)
        data.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, data, write_page_checksum=True)
        stats = self._stats(episode, table)
        self.rows.append(
            {
                "episode_index": len(self.rows),
                "tasks": list(episode.instructions),
                "length": row.length,
                **{f"data/{key}": value for key, value in place.items()},
                "dataset_from_index": self.num_frames,
                "dataset_to_index": self.num_frames + row.length,
                **self._video_entries(row),
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
                **{
                    f"stats/{key}/{name}": v.tolist()
                    for key, part in stats.items()
                    for name, v in part.items()
                },
            }
        )
        self.stats.append(stats)
        self.uids.append(episode.uid)
        self.num_frames += row.length

    def _table(self, row: EpisodeRow) -> pa.Table:
        """All columns of the episode, with the counters of the new dataset."""
        path = Path(self.dataset.meta.root) / row.data_file
        names = pq.read_schema(path).names
        filters = [("episode_index", "==", row.index)] if "episode_index" in names else None
        table = read_table(path, None, filters)
        frame = np.arange(row.length)
        for name, values in (
            ("episode_index", 0 * frame + len(self.rows)),
            ("index", frame + self.num_frames),
        ):
            if name in names:
                table = table.set_column(table.column_names.index(name), name, pa.array(values))
        return self._with_images(table)

    def _with_images(self, table: pa.Table) -> pa.Table:
        """Drop the pictures of excluded cameras, and move picture files of the others into the table."""
        kept, root = set(self.dataset.cameras.values()), Path(self.dataset.meta.root)
        for key, feature in self.dataset.meta.features.items():
            if feature.dtype not in PICTURES or key not in table.column_names:
                continue
            place = table.column_names.index(key)
            if key not in kept:
                table = table.remove_column(place)
                continue
            entries = table[key].to_pylist()
            if any(isinstance(entry, dict) and entry.get("bytes") is None for entry in entries):
                whole = [{"bytes": image_bytes(root, entry), "path": entry.get("path")} for entry in entries]
                table = table.set_column(place, key, pa.array(whole, IMAGE_TYPE))
        return table

    def _video_entries(self, row: EpisodeRow) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key in self.dataset.cameras.values():
            if key not in row.videos:
                continue
            name, start = row.videos[key]
            numbers = {file: n for (known, file), n in self._videos.items() if known == key}
            place = _place(numbers.get(name, len(numbers)))
            if name not in numbers:
                self._videos[key, name] = len(numbers)
                # The source's path templates may omit the key, so the key may contain any characters.
                target = self.root / fill_path(V3_VIDEO, Path(self.dataset.meta.root), video_key=key, **place)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(self.dataset.meta.root) / name, target)
            entries |= {f"videos/{key}/{part}": value for part, value in place.items()}
            entries[f"videos/{key}/from_timestamp"] = float(start)
            entries[f"videos/{key}/to_timestamp"] = float(start + row.length / self.dataset.meta.fps)
        return entries

    def _stats(self, episode: Episode, table: pa.Table) -> dict[str, Stats]:
        stats = {}
        for key in table.column_names:
            feature = self.dataset.meta.features.get(key)
            if feature is not None and feature.dtype not in (*PICTURES, "string"):
                stats[key] = column_stats(np.array(table[key].to_pylist()).reshape(table.num_rows, -1))
        for name, key in self.dataset.cameras.items():
            reader = episode.frames[name]
            stats[key] = picture_stats(reader.read(evenly_spread(len(reader), STATS_FRAMES)))
        return stats

    def finish(self) -> None:
        """Write the meta folder."""
        tasks = {text: index for index, text in self.dataset.meta.tasks.items()}
        kept = set(self.dataset.cameras.values())
        features = {
            key: entry
            for key, entry in self.info["features"].items()
            if entry["dtype"] not in PICTURES or key in kept
        }
        info = {key: value for key, value in self.info.items() if key not in V2_ONLY} | {
            "codebase_version": "v3.0",
            "total_episodes": len(self.rows),
            "total_frames": self.num_frames,
            "total_tasks": len(tasks),
            "chunks_size": CHUNK_SIZE,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "splits": {"train": f"0:{len(self.rows)}"},
            "data_path": V3_DATA,
            "video_path": V3_VIDEO,
            "features": features,
        }
        episode_files(self.root, self.rows, task_table(tasks))
        stats = {key: joined_stats([part[key] for part in self.stats]) for key in self.stats[0]}
        plain = {key: {name: v.tolist() for name, v in part.items()} for key, part in stats.items()}
        own = {**self.dataset.meta.extra, "uids": self.uids}
        for name, content in (("meta/stats.json", plain), (INFO, info), (OWN_FILE, own)):
            (self.root / name).write_text(json.dumps(content, indent=4))


def _place(number: int) -> dict[str, int]:
    return {"chunk_index": number // CHUNK_SIZE, "file_index": number % CHUNK_SIZE}
