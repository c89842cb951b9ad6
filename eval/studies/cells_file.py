"""All numbers of a study in one file, cells.jsonl: the first line names the study, then one line per cell.

A key is NAME or KIND/NAME.
"""

import math
from pathlib import Path
from typing import Any

from worldmodel.evaluation.jsonl_store import RecordLines, read_records

CELLS_FILE = "cells.jsonl"


def open_cells(folder: Path, study: str) -> RecordLines:
    """The cells in a results folder, for appending; a file of another study is refused."""
    return RecordLines(folder / CELLS_FILE, {"study": study})


def read_cells(folder: Path, kind: str = "") -> dict[str, dict[str, Any]]:
    """Name -> record of all cells, or of those of one kind."""
    prefix = f"{kind}/" if kind else ""
    records = read_records(folder / CELLS_FILE).items()
    return {key.removeprefix(prefix): record for key, record in records if key.startswith(prefix)}


def finite(value: Any) -> Any:
    """Replace numbers that JSON lacks (infinity and NaN, as in diverged seeds) by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value
