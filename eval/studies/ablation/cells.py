"""The runs of the ablation: a training and an evaluation for every row and seed.

OUTPUT/ROW/seed0/trained        trained from scratch, unless the row names a model
OUTPUT/ROW/seed0/changed        the named model, told other actions, where the row asks for it
OUTPUT/ROW/seed0/report         report of worldmodel rollout on held-out episodes
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from studies.ablation.changed_model import ModelChange, write_changed
from studies.cells import ROLL_OUT, TRAIN, Cell


@dataclass(frozen=True)
class AblationRow:
    """A row of the table."""

    name: str = ""  # of its folder
    title: str = ""  # in the table
    settings: tuple[str, ...] = ()  # key=value of the training, in addition to those of all rows
    model: str = ""  # an existing world model: no training, and no seeds
    change: ModelChange = field(default_factory=ModelChange)  # changes to that model
    against: str = ""  # row to compare with; empty: the first, or none if `model` is set


@dataclass(frozen=True)
class AblationConfig:
    """Rows that differ in one thing each. Settings are key=value of the commands that the cells run."""

    output: str = "outputs/desk/ablation"  # folder of all cells
    results: str = "docs/results/ablation"  # folder of cells.jsonl and tables.md
    training: str = "configs/desk/streaming.yaml"  # config of `worldmodel train`
    training_settings: tuple[str, ...] = ()  # additional key=value of every training
    test: str = ""  # held-out episodes
    rollout_settings: tuple[str, ...] = ()  # of `worldmodel rollout`
    seeds: tuple[int, ...] = (0, 1)  # of weights, order of the clips and noise
    rows: list[AblationRow] = field(
        default_factory=list
    )  # the first is trained here, and the others are compared with it

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if not names or len(set(names)) != len(names) or not all(names):
            raise ValueError(f"rows need names, each of its own, got {names}")
        if self.rows[0].model or any(row.model and row.settings for row in self.rows):
            raise ValueError("the first row is trained here, and a row with a model has no settings")
        if any(row.change != ModelChange() and not row.model for row in self.rows):
            raise ValueError("change is for rows that name a model: others are trained with settings")
        if unknown := {row.against for row in self.rows} - {"", *names}:
            raise ValueError(f"against names {sorted(unknown)}; rows are {names}")
        if not self.test or not self.seeds:
            raise ValueError("test and seeds must not be empty")


def seeds_of(config: AblationConfig, row: AblationRow) -> tuple[int, ...]:
    """The seeds of a row; a row that is not trained here has only one."""
    return config.seeds[:1] if row.model else config.seeds


def report_folder(config: AblationConfig, row: AblationRow, seed: int) -> Path:
    """Folder of a row's report."""
    return Path(config.output) / row.name / f"seed{seed}" / "report"


def change_models(config: AblationConfig) -> None:
    """Write the changed models; a missing original is reported by its evaluation."""
    for row in config.rows:
        if row.change != ModelChange() and Path(row.model).exists():
            write_changed(row.model, row.change, _changed(config, row))


def _changed(config: AblationConfig, row: AblationRow) -> Path:
    return report_folder(config, row, config.seeds[0]).parent / "changed"


def plan(config: AblationConfig) -> list[Cell]:
    """All rows of one seed come before the next seed, so that an interrupted study is still comparable."""
    return [
        cell
        for seed in config.seeds
        for row in config.rows
        if seed in seeds_of(config, row)
        for cell in _cells(config, row, seed)
    ]


def _cells(config: AblationConfig, row: AblationRow, seed: int) -> Iterator[Cell]:
    report = report_folder(config, row, seed)
    place, trained = f"{row.name}/seed{seed}", report.parent / "trained"
    needs: tuple[str, ...] = () if row.model else (f"{place}/trained",)
    if not row.model:
        seeds = (f"{key}={seed}" for key in ("fit.seed", "model.seed", "model.backbone.seed"))
        settings = (config.training, f"output={trained}", *seeds, *config.training_settings, *row.settings)
        yield Cell(needs[0], trained, TRAIN, settings, (sys.executable,), trained / "model")
    model = row.model if row.change == ModelChange() else str(_changed(config, row))
    given = (model or str(trained / "model"), config.test, f"output={report}", *config.rollout_settings)
    yield Cell(f"{place}/report", report, ROLL_OUT, given, (sys.executable,), report / "report.html", needs)
