"""Reads untrusted descriptions within limits, and checks every field before anything is built from them.

A model folder, a dataset or a mapping may come from anyone. Its JSON and YAML go through this module: only
regular files are opened, sizes are limited, and each value must have its type, be finite and lie in a
plausible range. Every violation becomes a ValueError that names file and field.
"""

import dataclasses
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

D = TypeVar("D")
MAX_JSON_BYTES = 16 << 20  # small objects take up to 40 times their text in memory
MAX_YAML_BYTES = 1 << 20
MAX_YAML_NODES = 20_000
MAX_DEPTH = 32  # of nested YAML
MAX_TEXT = 10_000  # characters of one string
LFS_POINTER = b"version https://git-lfs.github.com/spec"
LISTS = (tuple, list, Sequence)  # types that a JSON list may become
LARGEST_COUNT = (1 << 63) - 1  # upper limit of any integer: the largest seed of torch
LARGEST = 1e12  # of a measured number, in any unit used for robots


def is_regular(path: Path) -> bool:
    """Whether it is a regular file or a link to one: reading a FIFO or a device could block."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def check_regular(path: Path) -> Path:
    """Return the path, for readers of other libraries; anything but a regular file is refused."""
    if not is_regular(path):
        raise ValueError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    return path


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Read a regular file; links are followed; FIFOs, devices and large files are refused."""
    try:
        # Opening a FIFO without this flag would block until there is a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path}: expected a regular file, got a folder, FIFO or device")
    with open(descriptor, "rb") as file:
        # For a larger count, Python allocates the memory before it reads.
        data = file.read(min(max_bytes, os.fstat(descriptor).st_size) + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path}: expected at most {max_bytes} bytes, it is larger")
    return data


def lfs_hint(path: str | Path) -> str:
    """What to do about a file that Git LFS has not fetched yet; empty for other files."""
    try:
        with open(path, "rb") as file:
            is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:
        return ""
    return f"{path}: a Git LFS pointer, not the file itself; run git lfs pull" if is_pointer else ""


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Read a UTF-8 text file, with the limits of `read_bytes`."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text in UTF-8 ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; errors name the file."""
    text = read_text(path)
    if text.startswith(LFS_POINTER.decode()):
        raise ValueError(lfs_hint(path))
    content = parse_json(text, str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def parse_json(text: str, where: str) -> Any:
    """Parse JSON text; `where` names it in messages."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from error


def check_yaml(text: str, where: str) -> None:
    """Refuse YAML that is too deep or too large, or that would expand: anchors and aliases."""
    depth = count = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            count += 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{where}: expected YAML without aliases, got *{event.anchor}")
            if depth > MAX_DEPTH or count > MAX_YAML_NODES:
                raise ValueError(f"{where}: expected at most {MAX_DEPTH} levels and {MAX_YAML_NODES} entries")
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{where}: not YAML ({error})") from error


def build(schema: type[D], values: Any, where: str) -> D:
    """A dataclass from a JSON object: keys and types are checked here, ranges by the dataclass.

    Example:
        >>> build(InputSpec, {"num_frames": "17"}, "contract.json")
        Traceback (most recent call last):
        ...
        ValueError: contract.json: num_frames is '17', expected a whole number
    """
    assert dataclasses.is_dataclass(schema), schema
    fields = {field.name: field for field in dataclasses.fields(schema)}
    entries = check_object(values, where)
    if unknown := sorted(set(entries) - set(fields)):
        raise ValueError(f"{where}: unknown {shorten(unknown[0])}, expected some of {', '.join(fields)}")
    missing = [name for name, field in fields.items() if name not in entries and _is_required(field)]
    if missing:
        raise ValueError(f"{where}: {missing[0]} is missing")
    hints = get_type_hints(schema)
    given = {name: check_type(value, hints[name], f"{where}: {name}") for name, value in entries.items()}
    try:
        return schema(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def check_object(values: Any, where: str) -> Mapping[str, Any]:
    """Return the mapping if its keys are strings; anything else is refused."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise ValueError(f"{where}: expected an object with named entries, got {shorten(values)}")
    return values


def check_type(value: Any, hint: Any, where: str) -> Any:
    """Convert the value to its type (a list becomes a tuple); another type is refused."""
    fitting = _fit(value, hint)
    if fitting is _WRONG:
        raise ValueError(f"{where} is {shorten(value)}, expected {_describe(hint)}")
    return fitting


_WRONG = object()


def _fit(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else _WRONG
    if origin in (Union, UnionType):
        return next((found for kind in arguments if (found := _fit(value, kind)) is not _WRONG), _WRONG)
    if origin in LISTS:
        return _fit_items(value, arguments)
    if hint is float:
        return float(value) if is_finite(value) else _WRONG
    if hint is str:
        return value if isinstance(value, str) and len(value) <= MAX_TEXT else _WRONG
    return value if type(value) is hint else _WRONG


def _fit_items(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        return _WRONG
    is_open = len(kinds) == 1 or kinds[1:] == (...,)
    if not is_open and len(value) != len(kinds):
        return _WRONG
    wanted = kinds[:1] * len(value) if is_open else kinds
    items = tuple(_fit(item, kind) for item, kind in zip(value, wanted, strict=True))
    return _WRONG if any(item is _WRONG for item in items) else items


def is_finite(value: Any) -> bool:
    """Whether it is a finite number; booleans do not count."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join(_describe(kind) for kind in arguments)
    if origin in LISTS:
        is_open = len(arguments) == 1 or arguments[1:] == (...,)
        return f"a list, each entry {_describe(arguments[0])}" if is_open else f"a list of {len(arguments)}"
    known = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}
    return {**known, NoneType: "null"}.get(hint, getattr(hint, "__name__", str(hint)))


def check_ranges(config: Any, **limits: tuple[float, float]) -> None:
    """Refuse fields of a dataclass outside (low, high), both inclusive; list entries are checked too."""
    for name, (low, high) in limits.items():
        value = getattr(config, name)
        check_range(value, low, high, f"{name}")


def check_range(value: Any, low: float, high: float, where: str) -> None:
    """Refuse a number, or a list of them, outside low .. high.

    Anything that is not a number is refused too.
    """
    numbers: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    if not all(is_finite(number) and low <= number <= high for number in numbers):
        raise ValueError(f"{where} must lie in {low:g} .. {high:g}, got {shorten(value)}")


def check_settings(config: Any, where: str) -> None:
    """Refuse values that no setting allows, at any depth: NaN, infinity, a negative count, nested lists.

    The dataclasses check the ranges of their own fields. An empty `output` would mean the current folder, so
    it is refused.
    """
    for place, value, hint in _settings(config, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{where}: {place} is {value}, expected a finite number")
        if type(value) is int and not 0 <= value <= LARGEST_COUNT:
            raise ValueError(f"{where}: {place} is {shorten(value)}, expected 0 .. {LARGEST_COUNT}")
        if get_origin(hint) in LISTS:
            check_type(value, hint, f"{where}: {place}")
        if place == "output" and not value:
            raise ValueError(f"{where}: output is empty; write . for the current folder")


def _settings(value: Any, place: str, hint: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """Every value with its dotted name and, for a field of a dataclass, its type."""
    if dataclasses.is_dataclass(value):
        hints = get_type_hints(type(value))
        for field in dataclasses.fields(value):
            name = f"{place}.{field.name}".lstrip(".")
            yield from _settings(getattr(value, field.name), name, hints[field.name])
        return
    yield place, value, hint
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _settings(entry, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _settings(entry, f"{place}[{number}]")


def shorten(value: Any) -> str:
    """Format a value for a message: at most 80 characters, on one line."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
