"""YAML + dotted overrides -> a frozen dataclass, and back. The only file that knows OmegaConf."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

C = TypeVar("C")


def load_config(schema: type[C], path: str | None, overrides: Sequence[str] = ()) -> C:
    """Defaults of `schema`, the YAML at `path`, then `key.sub=value` overrides; typos and bad types fail."""
    where = path or "the command line"
    try:
        layers = [OmegaConf.structured(schema)]
        if path is not None:
            if not Path(path).is_file():
                raise ValueError(f"no config file at {path}")
            layers.append(OmegaConf.load(path))
        for override in overrides:
            if "=" not in override:
                raise ValueError(f"an override is key=value, got {override!r}")
        layers.append(OmegaConf.from_dotlist(list(overrides)))
        config = OmegaConf.to_object(OmegaConf.merge(*layers))
    except OmegaConfBaseException as error:
        raise ValueError(f"{where}: {error}") from error
    assert isinstance(config, schema), type(config)
    return config


def config_to_yaml(config: Any) -> str:
    """The resolved config as YAML that `load_config` reads back."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def save_config(config: Any, path: str | Path) -> None:
    """Write the resolved config."""
    Path(path).write_text(config_to_yaml(config))


def describe_config(schema: type, prefix: str = "") -> Iterator[str]:
    """One line per field: dotted name, default, and the comment that stands beside it in the source."""
    comments = _field_comments(schema)
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from describe_config(hint, f"{prefix}{field.name}.")
            continue
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        comment = comments.get(field.name, "")
        yield f"  {prefix}{field.name}={default!r}" + (f"    {comment}" if comment else "")


def _field_comments(schema: type) -> dict[str, str]:
    source = inspect.getsource(schema)
    lines = source.splitlines()
    body = ast.parse(inspect.cleandoc("\n".join(lines))).body[0]
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
