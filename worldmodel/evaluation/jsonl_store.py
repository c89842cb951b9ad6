"""Results that survive a kill: a JSON lines file with one line per item.

The first line holds the settings.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from worldmodel.files import write_text


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Items by key, in the order of completion; may be called while a run still adds to them."""
    if not path.is_file():
        raise ValueError(f"no results at {path}")
    raw = path.read_bytes()
    lines = _parse(path, raw[: raw.rfind(b"\n") + 1])
    return {line["key"]: line["record"] for line in lines[1:]}


class RecordLines:
    """Finished items of a run, by key; a restarted run skips them.

    A file with other settings on its first line is refused, so results of two runs never mix. Several
    processes may add items to one file.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.records: dict[str, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as file:
            lines = _parse(path, _whole_lines(file))
            if not lines:
                _append(file, _text({"settings": self.settings}))
                return
        found = lines[0].get("settings")
        if found != self.settings:
            raise ValueError(
                f"{path} belongs to another run: {_difference(found, self.settings)}; use another output"
            )
        self.records = {line["key"]: line["record"] for line in lines[1:]}

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Store the item, replacing an earlier one with its key; flushed to disk on return."""
        line = _text({"key": key, "record": record})
        is_new = key not in self.records
        with self._locked() as file:
            whole = _whole_lines(file)
            if is_new:
                _append(file, line if whole else _text({"settings": self.settings}) + line)
            else:  # other processes may have added items meanwhile
                items = _parse(self.path, whole)[1:]
                found = {item["key"]: item["record"] for item in items} | {key: record}
                texts = [_text({"key": key, "record": record}) for key, record in found.items()]
                write_text(self.path, _text({"settings": self.settings}) + "".join(texts))
        self.records[key] = record

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """The open file, locked against other processes."""
        while True:
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if _is_at(file, self.path):
                    yield file
                    return


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the file still has this path: another process may have replaced it meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _whole_lines(file: IO[bytes]) -> bytes:
    """The content of the file; a truncated last line is removed."""
    file.seek(0)
    raw = file.read()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        file.truncate(len(whole))
    return whole


def _parse(path: Path, whole: bytes) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        is_item = isinstance(value, dict) and isinstance(value.get("record"), dict)
        if not isinstance(value, dict) or (lines and not (is_item and isinstance(value.get("key"), str))):
            raise ValueError(f"{path}, line {number}: expected an object with key and record")
        lines.append(value)
    return lines


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def _append(file: IO[bytes], text: str) -> None:
    file.write(text.encode())
    file.flush()
    os.fsync(file.fileno())


def _difference(found: Any, expected: Mapping[str, Any]) -> str:
    """A description of the first setting that differs."""
    if not isinstance(found, dict):
        return "it has no settings"
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            return f"{name} was {found.get(name)!r}, now {expected.get(name)!r}"
    raise AssertionError("equal settings")
