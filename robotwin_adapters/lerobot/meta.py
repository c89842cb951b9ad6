"""Metadata of a LeRobot dataset (v2.0, v2.1, v3.0): features, cameras, and one row per episode."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from robotwin_adapters.lerobot.footer import unpacked_bytes
from robotwin_adapters.storage import TABLE_FREE_BYTES, check_expansion
from worldmodel.checked import (
    check_object,
    check_range,
    check_regular,
    check_type,
    is_finite,
    lfs_hint,
    parse_json,
    read_json,
    read_text,
    shorten,
)
from worldmodel.types import FASTEST, SLOWEST

INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
OWN_FILE = "meta/worldmodel.json"  # additional metadata of our own writer
EXTRA_KEY = "worldmodel"  # the same as an entry of info.json, in older datasets of ours
# Default data and video paths, for info.json files without them.
V2_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
MAX_NAME, MAX_PATH = 255, 3000  # limits of file systems in bytes
V3_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
V3_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
MAX_LINES_BYTES = 256 << 20  # of a table of episodes in JSON lines
VARIABLE = ("string", "binary", "large_string", "large_binary")  # types of texts and pictures
FIELD = re.compile(r"\{(\w+)(?::(0?\d)d)?\}")


@dataclass(frozen=True)
class Feature:
    """One column of the data, or one camera."""

    dtype: str  # float32, int64, video, image, ...
    shape: tuple[int, ...]
    names: tuple[str, ...]  # flattened; empty when the file gives none
    is_depth: bool = False

    def frame_size(self) -> tuple[int, int] | None:
        """(height, width) of a camera; channels may be first or last."""
        if len(self.shape) != 3:
            return None
        channels_first = self.names[:1] in (("channel",), ("channels",), ("c",)) if self.names else None
        if channels_first is None:
            channels_first = self.shape[0] in (1, 3, 4) and self.shape[2] not in (1, 3, 4)
        return (self.shape[1], self.shape[2]) if channels_first else (self.shape[0], self.shape[1])


@dataclass(frozen=True)
class EpisodeRow:
    """Location of one episode."""

    index: int
    length: int  # frames
    tasks: tuple[str, ...]
    data_file: str  # relative to the dataset
    first_row: int | None  # in the numbering of the whole dataset (column `index`), if the table has it
    videos: Mapping[str, tuple[str, float]]  # video key -> (file, time of the first frame in seconds)


@dataclass(frozen=True)
class LerobotMeta:
    """info.json and the tables, checked against each other."""

    root: str
    version: str
    fps: float
    robot_type: str
    features: Mapping[str, Feature]
    episodes: tuple[EpisodeRow, ...]
    tasks: Mapping[int, str]
    extra: Mapping[str, Any]  # entries of our own writer


def read_meta(root: str | Path) -> LerobotMeta:
    """Read and cross-check the meta folder."""
    root = Path(root)
    path = root / INFO
    info = read_json(path)
    version = info.get("codebase_version")
    if version not in VERSIONS:
        raise ValueError(f"{path}: codebase_version is {version!r}, this reader knows {', '.join(VERSIONS)}")
    fps: Any = info.get("fps")
    if not is_finite(fps) or not SLOWEST <= fps <= FASTEST:
        raise ValueError(f"{path}: fps is {shorten(fps)}, expected a positive number up to {FASTEST:g}")
    features = _features(path, info)
    tasks = _tasks_v3(root) if version == "v3.0" else _tasks_v2(root)
    video_keys = [key for key, feature in features.items() if feature.dtype == "video"]
    rows = _episodes_v3(root, info, video_keys) if version == "v3.0" else _episodes_v2(root, info, video_keys)
    _check_totals(path, info, rows)
    return LerobotMeta(
        root=str(root),
        version=version,
        fps=float(fps),
        robot_type=str(info.get("robot_type") or root.resolve().name),
        features=features,
        episodes=tuple(rows),
        tasks=tasks,
        extra=_own_entry(root, info),
    )


def _own_entry(root: Path, info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metadata of our own writer; empty for other datasets."""
    where = f"{root / OWN_FILE}"
    if (root / OWN_FILE).is_file():
        entry: Mapping[str, Any] = read_json(root / OWN_FILE)
    else:
        where = f"{root / INFO}: {EXTRA_KEY}"
        entry = check_object(info.get(EXTRA_KEY, {}), where)
    for name in ("uids", "action_deltas"):
        if name in entry:
            check_type(entry[name], tuple[str, ...], f"{where}: {name}")
    if "recorded_fps" in entry:
        check_type(entry["recorded_fps"], float, f"{where}: recorded_fps")
        check_range(entry["recorded_fps"], SLOWEST, FASTEST, f"{where}: recorded_fps")
    return entry


def _template(root: Path, info: Mapping[str, Any], key: str, default: str) -> str:
    value = info.get(key)
    given = default if value is None or value == "" else check_type(value, str, f"{root / INFO}: {key}")
    first, slash, rest = given.partition("/")
    other = first.removesuffix("s") if first.endswith("s") else f"{first}s"
    # Some sets keep their videos in video/ and say videos/.
    is_other = slash and "{" not in first and not (root / first).exists() and (root / other).is_dir()
    return f"{other}/{rest}" if is_other else given


def fill_path(template: str, where: Path, **values: int | str) -> str:
    """Fill in a path template of info.json; the result must stay inside the dataset folder."""

    def value(match: re.Match[str]) -> str:
        name, width = match.groups()
        if name not in values:
            raise ValueError(f"{where}: path template {template!r} uses {name!r}, known: {', '.join(values)}")
        return format(values[name], f"{width}d") if width else str(values[name])

    filled = FIELD.sub(value, template)
    parts = PurePosixPath(filled).parts
    is_long = len(filled.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts)
    if filled.startswith("/") or ".." in parts or not parts or is_long or re.search(r"[{}\\:\0]", filled):
        given, got = shorten(template), shorten(filled)
        raise ValueError(f"{where}: path template {given} gives {got}, not a path in the dataset")
    return filled


def read_table(path: Path, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
    """Read a parquet file; page checksums are verified if present, decompression bombs refused."""
    size = check_regular(path).stat().st_size
    label = f"{path}: the table"
    try:
        check_expansion(label, size, unpacked_bytes(str(path), file_stamp(path)), free=TABLE_FREE_BYTES)
        leaves = pq.read_metadata(path).schema
        texts = [
            leaf.path for leaf in map(leaves.column, range(len(leaves))) if leaf.physical_type == "BYTE_ARRAY"
        ]
        # Repeated strings and pictures stay references to one, until their total size is checked.
        table = pq.read_table(
            path, columns=columns, filters=filters, page_checksum_verification=True, read_dictionary=texts
        )
        table.validate(full=True)  # invalid UTF-8 would raise an error without the file name
        decoded = sum(_decoded_bytes(part) for column in table.columns for part in column.chunks)
        check_expansion(label, size, decoded, free=TABLE_FREE_BYTES)
        schema = pq.read_schema(path)
        for place, name in enumerate(table.column_names):
            if not pa.types.is_string(schema.field(name).type):
                table = table.set_column(place, name, table[name].cast(schema.field(name).type))
        return table
    except (OSError, pa.ArrowException, UnicodeError, OverflowError, KeyError) as error:
        reason = lfs_hint(path) or f"{path}: cannot be read as parquet ({str(error).splitlines()[0]})"
        raise ValueError(reason) from error


def file_stamp(path: Path) -> tuple[int, int]:
    """Size and modification time, used as a cache key."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _decoded_bytes(values: pa.Array) -> int:
    """Size of an array once all references are expanded."""
    if isinstance(values, pa.StructArray):
        return sum(map(_decoded_bytes, values.flatten()))
    if isinstance(values, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _decoded_bytes(values.flatten())
    if not isinstance(values, pa.DictionaryArray) or str(values.type.value_type) not in VARIABLE:
        return int(values.nbytes)
    return int(pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0)


def _features(path: Path, info: Mapping[str, Any]) -> dict[str, Feature]:
    features = info.get("features")
    if not isinstance(features, dict) or not features:
        raise ValueError(f"{path}: expected an object 'features', got {type(features).__name__}")
    return {key: _feature(f"{path}: feature {key!r}", entry) for key, entry in features.items()}


def _feature(where: str, entry: Any) -> Feature:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise ValueError(f"{where}: expected an object with dtype and shape, got {str(entry)[:80]!r}")
    shape = entry.get("shape") or ()
    if not isinstance(shape, list | tuple) or not all(type(size) is int and size > 0 for size in shape):
        raise ValueError(f"{where}: shape is {shape!r}, expected a list of positive integers")
    video = {**_mapping(entry.get("video_info")), **_mapping(entry.get("info"))}
    is_depth = bool(video.get("video.is_depth_map") or video.get("is_depth_map"))
    return Feature(entry["dtype"], tuple(shape), _flat_names(entry.get("names")), is_depth)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _flat_names(names: Any) -> tuple[str, ...]:
    """Flatten names given as a list, a nested list, {group: [names]}, {name: position} or null."""
    if names is None:
        return ()
    if isinstance(names, dict):
        if names and all(type(position) is int for position in names.values()):
            return tuple(sorted(names, key=names.__getitem__))
        return tuple(name for group in names.values() for name in _flat_names(group))
    if isinstance(names, list | tuple):
        return tuple(name for part in names for name in _flat_names(part))
    return (str(names),)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_text(path, MAX_LINES_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        entry = parse_json(line, f"{path}:{number}")
        if not isinstance(entry, dict):
            raise ValueError(f"{path}:{number}: expected a JSON object, got {type(entry).__name__}")
        yield entry


def _count(path: Path, entry: Mapping[str, Any], key: str, minimum: int = 0) -> int:
    value = entry.get(key)
    if type(value) is not int or not minimum <= value < 1 << 48:
        raise ValueError(f"{path}: {key!r} is {value!r}, expected a whole number >= {minimum}")
    return value


def _texts(path: Path, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{path}: 'tasks' is {str(value)[:80]!r}, expected a list of texts")
    return tuple(texts)


def _tasks_v2(root: Path) -> dict[int, str]:
    path = root / "meta/tasks.jsonl"
    if not path.exists():
        return {}
    return {_count(path, entry, "task_index"): str(entry.get("task", "")) for entry in _json_lines(path)}


def _episodes_v2(root: Path, info: Mapping[str, Any], video_keys: list[str]) -> list[EpisodeRow]:
    path = root / "meta/episodes.jsonl"
    chunk_size = _count(root / INFO, info, "chunks_size", 1) if "chunks_size" in info else 1000
    data, video = _template(root, info, "data_path", V2_DATA), _template(root, info, "video_path", V2_VIDEO)
    rows = []
    for entry in sorted(_json_lines(path), key=lambda entry: _count(path, entry, "episode_index")):
        index, length = _count(path, entry, "episode_index"), _count(path, entry, "length", 1)
        chunk = index // chunk_size
        # Some writers of v2.1 use the field names of v3.0.
        place = {"episode_chunk": chunk, "chunk_index": chunk, "episode_index": index, "file_index": index}
        videos = {key: (fill_path(video, root / INFO, video_key=key, **place), 0.0) for key in video_keys}
        data_file = fill_path(data, root / INFO, **place)
        rows.append(EpisodeRow(index, length, _texts(path, entry.get("tasks")), data_file, None, videos))
    return rows


def _tasks_v3(root: Path) -> dict[int, str]:
    path = root / "meta/tasks.parquet"
    if not path.exists():
        return {}
    table = read_table(path)
    # pandas stores the index (the text) under its name, or under a generated name if it has none.
    text = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    if text is None or "task_index" not in table.column_names:
        raise ValueError(f"{path}: expected columns task and task_index, got {table.column_names}")
    pairs = zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True)
    return {int(index): str(task) for index, task in pairs}


def _episodes_v3(root: Path, info: Mapping[str, Any], video_keys: list[str]) -> list[EpisodeRow]:
    files = sorted((root / "meta/episodes").glob("chunk-*/file-*.parquet"))
    if not files:
        raise ValueError(f"{root}: no episode table at meta/episodes/chunk-*/file-*.parquet")
    rows = []
    for path in files:
        try:
            names = pq.read_schema(check_regular(path)).names
        except (OSError, pa.ArrowException, UnicodeError) as error:
            raise ValueError(f"{path}: cannot be read as parquet ({error})") from error
        # Statistics are most of the table and are not needed here.
        table = read_table(path, [name for name in names if not name.startswith("stats/")])
        rows += [_row_v3(root, path, info, video_keys, entry) for entry in table.to_pylist()]
    return sorted(rows, key=lambda row: row.index)


def _row_v3(
    root: Path, path: Path, info: Mapping[str, Any], video_keys: list[str], entry: Mapping[str, Any]
) -> EpisodeRow:
    data, video = _template(root, info, "data_path", V3_DATA), _template(root, info, "video_path", V3_VIDEO)
    length = _count(path, entry, "length", 1)
    first, last = _count(path, entry, "dataset_from_index"), _count(path, entry, "dataset_to_index")
    if last - first != length:
        raise ValueError(f"{path}: an episode of {length} frames has rows {first}..{last}")

    def place(prefix: str) -> dict[str, int]:
        return {name: _count(path, entry, f"{prefix}/{name}") for name in ("chunk_index", "file_index")}

    videos = {}
    for key in video_keys:
        prefix = f"videos/{key}"
        if entry.get(f"{prefix}/file_index") is None:
            continue
        start, stop = entry.get(f"{prefix}/from_timestamp"), entry.get(f"{prefix}/to_timestamp")
        if not (isinstance(start, float) and isinstance(stop, float) and 0 <= start < stop < 1e9):
            raise ValueError(f"{path}: {prefix} runs from {start!r} to {stop!r} s, expected 0 <= from < to")
        # The end of the last frame, or its beginning: public datasets have both.
        if abs((stop - start) * info["fps"] - length) > 1.5:
            raise ValueError(f"{path}: {prefix} lasts {stop - start} s, expected {length} frames")
        videos[key] = (fill_path(video, root / INFO, video_key=key, **place(prefix)), start)
    data_file = fill_path(data, root / INFO, **place("data"))
    index, tasks = _count(path, entry, "episode_index"), _texts(path, entry.get("tasks"))
    return EpisodeRow(index, length, tasks, data_file, first, videos)


def _check_totals(path: Path, info: Mapping[str, Any], rows: list[EpisodeRow]) -> None:
    if not rows:
        raise ValueError(f"{path}: the dataset lists no episodes")
    if len({row.index for row in rows}) != len(rows):
        raise ValueError(f"{path}: an episode_index is listed twice")
    for key, found in (("total_episodes", len(rows)), ("total_frames", sum(row.length for row in rows))):
        if info.get(key, found) != found:
            raise ValueError(f"{path}: {key} is {info[key]!r}, the episode table has {found}")
