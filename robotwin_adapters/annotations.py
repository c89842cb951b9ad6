"""Reads video annotations from JSON, JSON lines, CSV, NPZ or NPY as named columns."""

import csv
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robotwin_adapters.lerobot.meta import read_table
from robotwin_adapters.storage import TABLE_FREE_BYTES, check_expansion
from worldmodel.checked import read_json

SUFFIXES = (".json", ".jsonl", ".csv", ".npz", ".npy")
TABLES = (*SUFFIXES, ".parquet")  # files that a list may name
ARRAY = "array"  # name given to the table of an .npy file


def read_annotation(path: Path) -> Mapping[str, Any]:
    """Named columns of the file; nothing is unpickled."""
    if path.suffix == ".json":
        return read_json(path)
    if path.suffix == ".parquet":
        return read_table(path).to_pydict()
    try:
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix == ".npy":
            return _read_npy(path)
        if path.suffix == ".jsonl":
            return _read_lines(path)
        if path.suffix == ".csv":
            return _read_csv(path)
    except Exception as error:  # zip and npy parsers raise many kinds on broken files
        raise ValueError(f"{path}: cannot be read as {path.suffix[1:]} ({error})") from error
    raise ValueError(f"{path}: annotations are {', '.join(SUFFIXES)} files")


def _read_csv(path: Path) -> dict[str, list[str]]:
    """One column per name in the first line; spaces around values and empty lines are ignored."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [row for row in csv.reader(file, strict=True) if any(value.strip() for value in row)]
    header, *rows = lines or [[]]
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(f"row {number + 1} has {len(row)} values, the first line names {len(header)}")
    return {key.strip(): [row[column].strip() for row in rows] for column, key in enumerate(header)}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    packed = sum(member.compress_size for member in members)
    check_expansion("the archive", packed, sum(m.file_size for m in members), free=TABLE_FREE_BYTES)
    with np.load(path, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    """One table, or the fields of a structured array."""
    values = np.load(path, allow_pickle=False)
    names = values.dtype.names
    return {ARRAY: values} if names is None else {name: values[name] for name in names}


def _read_lines(path: Path) -> dict[str, list[Any]]:
    """One JSON object per frame.

    Keys of nested objects are joined by dots, and must be the same in every line.
    """
    columns: dict[str, list[Any]] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines()):
        row = dict(_flattened(json.loads(line)))
        if number and row.keys() != columns.keys():
            odd = ", ".join(sorted(row.keys() ^ columns.keys()))
            raise ValueError(f"line {number + 1} has other keys than the first: {odd}")
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    return columns


def _flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object in every line, got {str(value)[:40]!r}")
    for key, entry in value.items():
        if isinstance(entry, dict):
            yield from _flattened(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", entry
