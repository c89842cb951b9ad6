"""What is installed beside the code: presets (configs) and small trained weights, found by name.

`worldmodel/presets` is the `configs` folder of the repository: a link in a checkout, files in a wheel.
"""

import difflib
from pathlib import Path

PRESETS = Path(__file__).parent / "presets"
WEIGHTS = Path(__file__).parent / "weights"


def preset_names() -> list[str]:
    """All presets, such as `debug/world_model`."""
    return sorted(path.relative_to(PRESETS).with_suffix("").as_posix() for path in PRESETS.rglob("*.yaml"))


def find_config(name: str) -> Path:
    """A config file: the path itself, or a preset by its name.

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
    """A model folder: the path itself, or one that is shipped (`desk`, `locator`) by its name."""
    shipped = WEIGHTS / name.removeprefix("worldmodel/weights/")
    is_plain = Path(name).parts == (name,) or name.startswith("worldmodel/weights/")
    if not Path(name).exists() and is_plain and ".." not in shipped.parts and shipped.is_dir():
        return shipped
    return Path(name)
