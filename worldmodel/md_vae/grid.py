"""A study as YAML grids: the settings its cells share, and the lists of values to combine.

preset: concat_smooth                                           # concat_smooth.yaml in the study's folder
grids:
  - sweep: {data.latent_dim: [5, 10], mcl.mode: [exact, jvp]}   # four cells, the last list changes fastest
    settings: [data.num_conditions=8]                           # of each of them
    name: "{preset}_{mode}"                                     # optional; else the preset's own name
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldmodel.config import load_config

PRESET = "preset"  # the swept key that names a YAML file instead of a setting


@dataclass(frozen=True)
class CellGrid:
    """One run for every combination of the swept values."""

    sweep: dict[str, list[Any]] = field(default_factory=dict)  # setting, or `preset` -> its values
    settings: tuple[str, ...] = ()  # key=value of every cell
    name: str = ""  # of the cells; {mode} is the value of the swept setting that ends in .mode


@dataclass(frozen=True)
class StudyGrids:
    """Experiment grids of a study, run one after another; each expands to a list of runs."""

    preset: str = ""  # for grids that do not sweep it
    grids: list[CellGrid] = field(default_factory=list)


@dataclass(frozen=True)
class CellRequest:
    """The arguments of one cell."""

    preset: str  # path of its YAML
    overrides: tuple[str, ...]


def read_grids(path: Path) -> list[CellRequest]:
    """The arguments of every cell in a study file."""
    study = load_config(StudyGrids, str(path))
    requests = []
    for number, grid in enumerate(study.grids, 1):
        for values in _combinations(grid, study.preset):
            if not values[PRESET]:
                raise ValueError(f"{path}, grid {number}: sweep a preset, or name one for the whole study")
            overrides = [f"{key}={value}" for key, value in values.items() if key != PRESET]
            if grid.name:
                overrides.append(f"name={_filled(grid.name, values, path, number)}")
            preset = path.parent / f"{values[PRESET]}.yaml"
            requests.append(CellRequest(str(preset), (*grid.settings, *overrides)))
    return requests


def _combinations(grid: CellGrid, preset: str) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*grid.sweep.values()):
        yield {PRESET: preset} | dict(zip(grid.sweep, chosen, strict=True))


def _filled(name: str, values: dict[str, Any], path: Path, number: int) -> str:
    words = {key.rsplit(".", 1)[-1]: value for key, value in values.items()}
    try:
        return name.format_map(words)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path}, grid {number}: name {name!r} may use {', '.join(sorted(words))} in braces, got {error}"
        ) from error
