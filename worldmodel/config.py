"""YAML + dotted overrides -> a frozen dataclass, and back. The only file that imports OmegaConf."""

import argparse
import ast
import dataclasses
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from worldmodel.checked import MAX_YAML_BYTES, check_settings, check_yaml, read_text
from worldmodel.shipped import find_config

C = TypeVar("C")
_WORD_IN_LIST = re.compile(r"([\[,] *)(null|no|off|yes|on)(?= *[,\]])")


def load_config(
    schema: type[C],
    path: str | None,
    overrides: Sequence[str] = (),
    beneath: Callable[[Any], Mapping[str, Any]] = lambda _: {},
) -> C:
    """Defaults of `schema`, the YAML at `path`, then `key.sub=value` overrides; typos and wrong types fail.

    A `path` that starts with a brace is the YAML itself. `beneath` is called with all of these and returns
    sections (dataclasses by name) that replace the defaults.

    Examples:
        >>> from worldmodel import ClipConfig, load_config
        >>> load_config(ClipConfig, None, ["num_frames=9", "height=32"]).num_frames
        9
        >>> load_config(ClipConfig, None, ["num_frame=9"])
        Traceback (most recent call last):
        ...
        ValueError: ...
    """
    where = path or "the command line"
    try:
        layers = [_defaults(schema)]  # type: ignore[arg-type]  # mypy does not see that classes can be hashed
        if path is not None:
            layers.append(_without_interpolation(_read_yaml(path), path))
        for override in overrides:
            if "=" not in override:
                raise ValueError(f"an override is key=value, got {override!r}")
        if overrides:
            known = OmegaConf.merge(*layers)
            given = OmegaConf.from_dotlist([_as_text(_in_brackets(known, text)) for text in overrides])
            layers.append(_without_interpolation(given, "the command line"))
        merged = OmegaConf.merge(*layers)
        if sections := beneath(merged):
            replaced = {name: OmegaConf.structured(section) for name, section in sections.items()}
            merged = OmegaConf.merge(layers[0], OmegaConf.create(replaced), *layers[1:])
        config = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, YAMLError, RecursionError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from error
    except ValueError as error:
        raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from error
    if not isinstance(config, schema):
        raise ValueError(f"{where}: expected named settings, got {type(config).__name__}")
    check_settings(config, where)
    return config


@lru_cache
def _defaults(schema: type) -> Any:
    """Cached, because converting a dataclass is the slowest part; callers merge into copies."""
    return OmegaConf.structured(schema)


def _read_yaml(path: str) -> Any:
    text = path if path.startswith("{") else read_text(find_config(path), MAX_YAML_BYTES)
    check_yaml(text, path)
    try:
        return OmegaConf.load(io.StringIO(text))
    except OSError as error:  # OmegaConf's error for a file with a bare number or boolean
        raise ValueError(f"{path}: expected named settings ({error})") from error


def _without_interpolation(layer: Any, source: str) -> Any:
    """Refuse `${...}`: OmegaConf would resolve it, and a config from elsewhere could read the environment."""
    for place, text in _texts(OmegaConf.to_container(layer, resolve=False), ""):
        if "${" in text:
            raise ValueError(f"{source}: {place} is {text!r}; expected plain values without ${{...}}")
    return layer


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every string in nested mappings and lists, including keys, with its dotted name."""
    if isinstance(value, dict):
        for key, entry in value.items():
            name = f"{where}.{key}" if where else str(key)
            yield f"the key {name}", str(key)
            yield from _texts(entry, name)
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _texts(entry, f"{where}[{number}]")
    elif isinstance(value, str):
        yield where, value


def _in_brackets(known: Any, override: str) -> str:
    """Add the brackets of a list if they are missing: shells such as zsh treat them as a pattern."""
    key, _, value = override.partition("=")
    is_bare = value not in ("", "null") and not value.startswith("[")
    is_list = is_bare and re.fullmatch(r"[\w.]+", key) and OmegaConf.is_sequence(OmegaConf.select(known, key))
    return f"{key}=[{value}]" if is_list else override


def _as_text(override: str) -> str:
    """Quote what YAML would not read as a string: empty values, and words that it reads as booleans.

    "key=" is the empty string (None is written "key=null"); boolean fields accept the quoted words too. In an
    unquoted list, null is a string as well, because no list of ours contains None.
    """
    key, _, value = override.partition("=")
    if value.startswith("[") and not set(value) & {"'", '"'}:
        return key + "=" + _WORD_IN_LIST.sub(r"\1'\2'", value)
    return f"{key}='{value}'" if value in ("", "no", "off", "yes", "on") else override


def config_to_yaml(config: Any) -> str:
    """The resolved config as YAML that `load_config` reads back."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def save_config(config: Any, path: str | Path) -> None:
    """Write the resolved config as YAML."""
    Path(path).write_text(config_to_yaml(config))


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device, for commands that run a network and take no key=value (see `device.py`)."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps"),
        default="auto",
        help="where networks run (default: auto, a GPU if there is one)",
    )


def config_parser(schema: type, description: str | None) -> argparse.ArgumentParser:
    """A parser whose help lists the settings; the caller adds arguments."""
    return argparse.ArgumentParser(
        description=description,
        epilog="keys:\n" + "\n".join(describe_config(schema)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def describe_config(schema: type, prefix: str = "") -> Iterator[str]:
    """One line per field: dotted name, default, and the comment next to it in the source."""
    comments: dict[str, str] = {}
    for part in reversed(schema.__mro__):
        comments |= _field_comments(part) if dataclasses.is_dataclass(part) else {}
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        nested = _nested_schema(hints[field.name])
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        comment = comments.get(field.name, "")
        if nested is None or default is None:
            yield f"  {prefix}{field.name}={default!r}" + (f"    {comment}" if comment else "")
        if nested is not None:
            yield from describe_config(nested, f"{prefix}{field.name}.")


def _nested_schema(hint: Any) -> type | None:
    """The dataclass of a field, also of an optional one; None for other types."""
    candidates = [kind for kind in (get_args(hint) or (hint,)) if dataclasses.is_dataclass(kind)]
    return candidates[0] if len(candidates) == 1 and isinstance(candidates[0], type) else None


def _field_comments(schema: type) -> dict[str, str]:
    source = inspect.getsource(schema)
    lines = source.splitlines()
    body = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(body, ast.ClassDef), schema
    fields = [
        node for node in body.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    comments = {}
    for node in fields:
        assert isinstance(node.target, ast.Name)
        for line in lines[node.lineno - 1 : node.end_lineno]:  # the formatter may have wrapped the field
            _, mark, comment = line.partition("  # ")
            if mark:
                comments[node.target.id] = comment.strip()
    return comments
