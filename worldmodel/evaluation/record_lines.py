"""Results that survive a kill: one JSON line per item, and a first line that says what they belong to."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_records(path: Path) -> list[dict[str, Any]]:
    """The items of a finished run, in the order in which they were done."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return list({line["key"]: line["record"] for line in lines[1:]}.values())


class RecordLines:
    """Finished items of a run, by key; a run that is started again finds them and goes on.

    Settings other than those of the first line are refused: results of two runs never mix.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.records: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": self.settings})

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keep the item; on return it is on the disk."""
        self._append({"key": key, "record": record})
        self.records[key] = record

    def _read(self) -> None:
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]  # a kill may have cut the last line
        lines = [self._parse(line, number) for number, line in enumerate(whole.splitlines(), 1)]
        if not lines:
            self.path.unlink()
            return
        found = lines[0].get("settings")
        if found != self.settings:
            raise ValueError(
                f"{self.path} belongs to another run: {_difference(found, self.settings)}; use another output"
            )
        self.records = {line["key"]: line["record"] for line in lines[1:]}
        if len(whole) < len(raw):
            os.truncate(self.path, len(whole))

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self.path}, line {number}: not JSON ({error})") from error
        if not isinstance(value, dict):
            raise ValueError(f"{self.path}, line {number}: expected an object, got {type(value).__name__}")
        return value

    def _append(self, value: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _difference(found: Any, expected: Mapping[str, Any]) -> str:
    """The first setting that differs, in words."""
    if not isinstance(found, dict):
        return "it has no settings"
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            return f"{name} was {found.get(name)!r}, now {expected.get(name)!r}"
    raise AssertionError("equal settings")
