"""Files installed with the code: presets (configs) and small trained weights, found by name.

`worldmodel/presets` is the `configs` folder of the repository: a link in a checkout, files in a wheel.
"""

import difflib
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

PRESETS = Path(__file__).parent / "presets"
WEIGHTS = Path(__file__).parent / "weights"


def preset_names() -> list[str]:
    """All presets, such as `debug/world_model`."""
    return sorted(path.relative_to(PRESETS).with_suffix("").as_posix() for path in PRESETS.rglob("*.yaml"))


def find_config(name: str) -> Path:
    """A config file, given by path or by preset name.

    Example:
        >>> find_config("debug/world_model").name
        'world_model.yaml'
    """
    if Path(name).is_file():
        return Path(name)
    preset = PRESETS / f"{name.removeprefix('configs/').removesuffix('.yaml')}.yaml"
    if preset.is_file() and PRESETS in preset.parents and ".." not in preset.parts:
        return preset
    near = difflib.get_close_matches(name, preset_names(), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `worldmodel presets` lists the presets"
    raise ValueError(f"no config file at {name} and no preset of this name{hint}")


def find_weights(name: str) -> Path:
    """A model folder, given by path or by the name of a shipped model (`desk`, `locator`)."""
    shipped = WEIGHTS / name.removeprefix("worldmodel/weights/")
    is_plain = Path(name).parts == (name,) or name.startswith("worldmodel/weights/")
    if not Path(name).exists() and is_plain and ".." not in shipped.parts and shipped.is_dir():
        return shipped
    return Path(name)


def is_hub_id(source: str) -> bool:
    """Whether it has the form owner/name; if owner is a local folder, it is a mistyped path instead."""
    is_plain = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    return is_plain and not Path(source).parent.is_dir()


def check_names(kinds: Sequence[str], words: Sequence[str]) -> None:
    """Refuse arguments of a command that name no config, model or data.

    Done before torch is imported, which takes seconds.
    """
    options = {"--dataset": "data", "--mapping": "config"}
    places = [(options[option], word) for option, word in pairwise(words) if option in options]
    for kind, word in (*zip(kinds, takewhile(_is_name, words), strict=False), *places):
        if kind == "config":
            find_config(word)
        elif kind == "data" and not (Path(word).exists() or is_hub_id(word)):
            raise ValueError(f"no dataset at {word}: no such file or folder")
        elif kind == "model" and not (find_weights(word).exists() or is_hub_id(word) or ":" in word):
            shipped = ", ".join(sorted(path.name for path in WEIGHTS.iterdir()))
            raise ValueError(f"no world model folder at {word}, and none of the shipped ones: {shipped}")


def _is_name(word: str) -> bool:
    return not word.startswith("-") and "=" not in word
