"""The cells of the context study: one training with its scores for every dataset, seed and row."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from studies.child_process import StoppedError
from worldmodel.config import load_config
from worldmodel.context_module.data.open_contexts import ContextDataConfig, open_contexts
from worldmodel.context_module.data.types import ContextDataset
from worldmodel.context_module.evaluation import ContextScoreConfig, reference_distances, score_contexts
from worldmodel.context_module.models.context_model import ContextModel
from worldmodel.context_module.training.context_run import ContextTrainConfig
from worldmodel.context_module.training.train import train
from worldmodel.mddiff.training.cost import read_cost


@dataclass(frozen=True)
class RowConfig:
    """A row of the table."""

    name: str = ""  # of its folders and records
    settings: tuple[str, ...] = ()  # key=value of the training
    start_from: str = ""  # an earlier row whose model of the same seed it starts from


@dataclass(frozen=True)
class ContextStudyConfig:
    """Which models, on which data, with which seeds."""

    output: str = "outputs/context/study"  # folder of all runs
    results: str = "docs/results/context"  # folder of cells.jsonl, tables and pictures
    training: str = "configs/context/desk.yaml"  # config of every training
    datasets: tuple[str, ...] = ("quad", "quad_causal")  # data.path of the trainings
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of weights, order of the pictures and noise
    rows: list[RowConfig] = field(default_factory=list)  # in order of execution
    scores: ContextScoreConfig = field(default_factory=ContextScoreConfig)

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if not names or len(set(names)) != len(names) or not all(names):
            raise ValueError(f"rows need names, each of its own, got {names}")
        for number, row in enumerate(self.rows):
            if row.start_from and row.start_from not in names[:number]:
                raise ValueError(f"row {row.name}: no row {row.start_from!r} stands above it")


@dataclass(frozen=True)
class Cell:
    """One training and its scores."""

    dataset: str
    row: RowConfig
    seed: int

    @property
    def key(self) -> str:
        """Key in cells.jsonl, and name of its folder."""
        return f"{self.dataset}/{self.row.name}/seed{self.seed}"


def plan(study: ContextStudyConfig) -> Iterator[Cell]:
    """All rows of one seed come before the next seed, so that an interrupted study is still comparable."""
    for seed in study.seeds:
        for dataset in study.datasets:
            for row in study.rows:
                yield Cell(dataset, row, seed)


def training_config(study: ContextStudyConfig, cell: Cell) -> ContextTrainConfig:
    """The training config of a cell."""
    settings = [
        *(f"data.path={cell.dataset}", f"fit.seed={cell.seed}", f"output={folder(study, cell)}"),
        *cell.row.settings,
    ]
    if cell.row.start_from:
        settings.append(
            f"start_from={study.output}/{cell.dataset}/{cell.row.start_from}/seed{cell.seed}/model"
        )
    return load_config(ContextTrainConfig, study.training, settings)


def folder(study: ContextStudyConfig, cell: Cell) -> Path:
    """Folder of the cell's run."""
    return Path(study.output) / cell.key


def run_cell(study: ContextStudyConfig, cell: Cell) -> dict[str, Any]:
    """Train unless it is trained already, and score it."""
    config = training_config(study, cell)
    model = Path(config.output) / "model"
    if not model.exists() and not train(config, True):
        raise StoppedError(f"{cell.key} was stopped; start the study again to go on")
    started = time.process_time()
    scores = score_contexts(ContextModel.from_pretrained(model), test_pictures(config.data), study.scores)
    cost = read_cost(Path(config.output))
    return {
        **scores,
        "training_cpu_s": None if cost is None else cost.cpu_seconds,
        "parameters": None if cost is None else cost.parameters,
        "scoring_cpu_s": round(time.process_time() - started, 1),
    }


def reference_record(study: ContextStudyConfig, dataset: str) -> dict[str, Any]:
    """Distances between real pictures."""
    config = load_config(ContextTrainConfig, study.training, [f"data.path={dataset}"])
    return dict(reference_distances(test_pictures(config.data), study.scores))


@cache
def test_pictures(config: ContextDataConfig) -> ContextDataset:
    """The test pictures, opened once."""
    return open_contexts(config, "test")
