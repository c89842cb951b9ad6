"""The rows of one episode of a LeRobot parquet file: validated numbers, and images stored in the table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, UInt8

from robotwin_adapters.arrays.pictures import decode_picture
from robotwin_adapters.lerobot.meta import EpisodeRow, Feature, LerobotMeta, file_stamp, read_table
from worldmodel.checked import check_regular, is_regular, lfs_hint
from worldmodel.data.decode_cache import ensure_sound

ACTION, STATE = "action", "observation.state"
MAX_KEPT_BYTES = 16 << 20  # of an encoded table whose rows are kept for the next episode
UNEVEN = 0.02  # of a frame, between two timestamps
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True)
class ParquetImages:
    """Frames stored as encoded images in a parquet column."""

    path: str
    column: str
    episode_index: int
    length: int
    size: tuple[int, int]  # (height, width) in pixels

    def __len__(self) -> int:
        return self.length

    def check(self, *, again: bool = False) -> None:
        """Decode all images, unless this content passed before; a damaged one raises ValueError."""
        part = f"{self.column} of episode {self.episode_index}"
        ensure_sound(self.path, part, lambda: [self.read([i]) for i in range(self.length)], again=again)

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at these positions, in this order; repeats are allowed."""
        images = _encoded(self.path, os.stat(self.path).st_mtime_ns, self.column, self.episode_index)
        if any(not 0 <= index < self.length for index in indices) or len(images) != self.length:
            raise ValueError(f"{self.path}: frame {list(indices)} asked for, it has 0..{self.length - 1}")
        frames = [
            decode_picture(f"{self.path}: {self.column!r} frame {index}", images[index]) for index in indices
        ]
        if any(frame.shape != (*self.size, 3) for frame in frames):
            raise ValueError(f"{self.path}: the images of {self.column!r} differ in size")
        return np.stack(frames) if frames else np.zeros((0, *self.size, 3), np.uint8)


def open_images(path: Path, column: str, row: EpisodeRow, verify: bool) -> ParquetImages:
    """The images of one episode; `verify` decodes each of them once."""
    images = _encoded(str(path), os.stat(path).st_mtime_ns, column, row.index)
    if len(images) != row.length:
        raise ValueError(f"{path}: {len(images)} images in {column!r}, expected {row.length}")
    height, width, _ = decode_picture(f"{path}: {column!r} frame 0", images[0]).shape
    reader = ParquetImages(str(path), column, row.index, row.length, (height, width))
    if verify:
        reader.check()
    return reader


@lru_cache(maxsize=2)
def _encoded(path: str, stamp: int, column: str, episode_index: int) -> tuple[bytes, ...]:
    table = read_table(Path(path), [column, "episode_index"], [("episode_index", "==", episode_index)])
    root = Path(path).parents[2]  # of data/chunk-000/NAME.parquet
    entries = [image_bytes(root, entry) for entry in table[column].to_pylist()]
    images = tuple(entry for entry in entries if isinstance(entry, bytes))
    if len(images) != len(entries):
        raise ValueError(
            f"{path}: column {column!r} should hold the bytes of an image in every row, or its path"
        )
    return images


def image_bytes(root: Path, entry: object) -> object:
    """The bytes in the table, else those of the file that the entry names inside the dataset."""
    if not isinstance(entry, dict):
        return entry
    name = entry.get("path")
    if entry.get("bytes") is None and isinstance(name, str):
        file = root / name
        if file.resolve().is_relative_to(root.resolve()) and is_regular(file):
            return file.read_bytes()
    return entry.get("bytes")


def episode_rows(
    path: Path, meta: LerobotMeta, row: EpisodeRow, cameras: Mapping[str, str], keys: Sequence[str]
) -> pa.Table:
    """The rows of one episode with these columns and no images, checked against the episode table."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file, episode {row.index} should be there")
    schema = _schema(str(path), file_stamp(path))
    for key in (*keys, *(key for key in cameras.values() if meta.features[key].dtype == "image")):
        if key not in schema.names:
            raise ValueError(f"{path}: no column {key!r}, it has {', '.join(schema.names)}")
    columns = [name for name in dict.fromkeys((*keys, *COUNTERS)) if name in schema.names]
    if meta.version == "v3.0" and "episode_index" not in columns:
        raise ValueError(f"{path}: no column 'episode_index' to find the episode by")
    table = _rows_of_episode(path, columns, row.index)
    if table.num_rows != row.length:
        raise ValueError(f"{path}: {table.num_rows} rows of episode {row.index}, expected {row.length}")
    if row.length < 2:
        raise ValueError(f"{path}: episode {row.index} has {row.length} frame, at least 2 are needed")
    _check_counters(path, table, row)
    return table


def _rows_of_episode(path: Path, columns: list[str], index: int) -> pa.Table:
    """From the whole table, kept for the next episode; from the file if that is large or damaged."""
    if "episode_index" not in columns:
        return read_table(path, columns)
    kept = _whole_table(str(path), file_stamp(path), tuple(columns))
    if kept is None:
        return read_table(path, columns, [("episode_index", "==", index)])
    table, episodes = kept
    places = np.flatnonzero(episodes == index)
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return table.slice(int(places[0]), len(places))
    return table.take(places)


# Episodes are read in order, and thousands of them may be in one file.
@lru_cache(maxsize=2)
def _whole_table(
    path: str, stamp: tuple[int, int], columns: tuple[str, ...]
) -> tuple[pa.Table, np.ndarray] | None:
    if stamp[0] > MAX_KEPT_BYTES:
        return None
    try:
        table = read_table(Path(path), list(columns))
        return table, _numbers(Path(path), table, "episode_index")
    except ValueError:
        return None


def uneven_times(path: Path, table: pa.Table, fps: float) -> Float[np.ndarray, " t"] | None:
    """The recorded times in seconds if they do not fit the frame rate."""
    if "timestamp" not in table.column_names:
        return None
    times = _numbers(path, table, "timestamp")
    return times if np.abs(np.diff(times) * fps - 1).max() > UNEVEN else None


def late_start(path: Path, table: pa.Table, fps: float) -> str:
    """A warning if the first timestamp is not that of frame 0, else an empty string.

    LeRobot aligns frames by timestamp, this package by frame index.
    """
    if "timestamp" not in table.column_names:
        return ""
    first = float(_numbers(path, table, "timestamp")[0])
    return (
        ""
        if abs(first * fps) < 0.5
        else f"timestamps begin at {first:.3g} s, frames are taken by their number"
    )


@lru_cache(maxsize=64)
def _schema(path: str, stamp: tuple[int, int]) -> pa.Schema:
    try:
        return pq.read_schema(check_regular(Path(path)))
    except (OSError, pa.ArrowException, UnicodeError) as error:
        reason = lfs_hint(path) or f"{path}: cannot be read as parquet ({str(error).splitlines()[0]})"
        raise ValueError(reason) from error


def _check_counters(path: Path, table: pa.Table, row: EpisodeRow) -> None:
    for name, start in (("frame_index", 0), ("index", row.first_row)):
        if name not in table.column_names:
            continue
        values = _numbers(path, table, name)
        start = values[0] if start is None else start
        if not np.array_equal(values, start + np.arange(len(values))):
            raise ValueError(f"{path}: column {name!r} of episode {row.index} does not count up from {start}")


def _numbers(path: Path, table: pa.Table, name: str) -> np.ndarray:
    try:
        values = np.asarray(table[name].to_pylist(), dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: column {name!r} is {table[name].type}, expected numbers") from error
    if len(values) != table.num_rows or not np.isfinite(values).all():
        raise ValueError(f"{path}: column {name!r} should have one finite number per row")
    return values


@lru_cache(maxsize=64)
def _recorded_range(path: str, stamp: int, key: str) -> tuple[float, float] | None:
    """Smallest and largest value of a column, from the footer of the file."""
    metadata = pq.read_metadata(path)
    columns = [i for i in range(metadata.num_columns) if _top_name(metadata.schema.column(i).path) == key]
    groups = range(metadata.num_row_groups)
    bounds = [metadata.row_group(group).column(column).statistics for group in groups for column in columns]
    if not bounds or not all(bound is not None and bound.has_min_max for bound in bounds):
        return None
    return min(bound.min for bound in bounds), max(bound.max for bound in bounds)


def _top_name(path: str) -> str:
    """The column of a parquet leaf: lists end in .list.element or .list.item."""
    return path.split(".list.")[0]


def vectors(
    path: Path, table: pa.Table, features: Mapping[str, Feature], key: str
) -> Float[np.ndarray, "t a"]:
    """A column of equally long vectors with the width in info.json, all finite; float32 stays float32."""
    if key not in features or key not in table.column_names:
        raise ValueError(f"{path}: no column {key!r}, it has {', '.join(table.column_names)}")
    column, shape = table[key], features[key].shape
    width = int(np.prod(shape)) if shape else 1
    flat, found = _flattened(column.combine_chunks())
    kind = flat.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        name = kind.value_type if pa.types.is_dictionary(kind) else column.type
        raise ValueError(f"{path}: column {key!r} is {name}, expected vectors of numbers")
    if flat.null_count or found != width:
        raise ValueError(
            f"{path}: column {key!r} should hold {width} numbers in every row, as info.json says"
        )
    dtype = np.float32 if kind == pa.float32() else np.float64
    array = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=dtype).reshape(table.num_rows, width)
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ValueError(f"{path}: column {key!r} has NaN or infinity in row {bad[0]}")
    # Values from damaged pages often exceed the range stored when the file was written.
    limits: tuple[float, float] | None = _recorded_range(str(path), os.stat(path).st_mtime_ns, key)
    if limits is not None and (array.min() < limits[0] or array.max() > limits[1]):
        raise ValueError(f"{path}: column {key!r} leaves its recorded range {limits[0]:.6g}..{limits[1]:.6g}")
    return array


def joined_vectors(
    path: Path, table: pa.Table, features: Mapping[str, Feature], keys: Sequence[str]
) -> Float[np.ndarray, "t a"]:
    """The columns concatenated."""
    return np.concatenate([vectors(path, table, features, key) for key in keys], axis=1)


def _flattened(values: pa.Array) -> tuple[pa.Array, int]:
    """The numbers of nested lists concatenated, and the number per row.

    -1 if rows differ or one is missing.
    """
    width = 1
    while _is_list(values.type):
        lengths = _lengths(values)
        width = -1 if values.null_count or len(lengths) != 1 or width < 0 else width * lengths.pop()
        values = values.flatten()
    return values, width


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind)


def _lengths(values: pa.Array) -> set[int]:
    if pa.types.is_fixed_size_list(values.type):
        return {values.type.list_size}
    return set(np.diff(values.offsets.to_numpy()).tolist())
