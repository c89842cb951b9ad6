"""The cells of the arm study: one training and its scores for every row and seed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.arms.causes import score_causes
from studies.arms.scores import TestClips, score_model
from studies.context.cells import RowConfig, StoppedError
from worldmodel.checked import read_json
from worldmodel.models.model import WorldModel
from worldmodel.training.world_model import TrainConfig, load_train_config, train


@dataclass(frozen=True)
class TestFolders:
    """Held-out episodes of the same seeds, one folder for each set of arms that moves."""

    both: str = ""  # folder of episodes in which both arms move
    left: str = ""  # the right arm holds
    right: str = ""  # the left arm holds


@dataclass(frozen=True)
class ArmStudyConfig:
    """Which models, trained on what, and the episodes they are judged on."""

    output: str = "outputs/arms/study"  # folder of all runs
    results: str = "docs/results/arms"  # folder of cells.jsonl, tables and videos
    training: str = "configs/context/arms_model.yaml"  # config of every training
    test: TestFolders = field(default_factory=TestFolders)
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights, order of the clips and noise
    rows: list[RowConfig] = field(default_factory=list)  # in the order of work
    episodes: int = 24  # of each test folder
    diagnosed_clips: int = 8  # clips of test.both on which effects of the arms are compared

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if not names or len(set(names)) != len(names) or not all(names):
            raise ValueError(f"rows need names, each of its own, got {names}")
        if any(row.start_from for row in self.rows):
            raise ValueError("rows of this study start from scratch: no start_from")


@dataclass(frozen=True)
class Cell:
    """One training and its scores."""

    row: RowConfig
    seed: int

    @property
    def key(self) -> str:
        """In cells.jsonl, and of its folder."""
        return f"{self.row.name}/seed{self.seed}"


def plan(study: ArmStudyConfig) -> Iterator[Cell]:
    """All rows of a seed before the next seed, so that a study cut short still compares."""
    for seed in study.seeds:
        for row in study.rows:
            yield Cell(row, seed)


def training_config(study: ArmStudyConfig, cell: Cell) -> TrainConfig:
    """What the cell trains; the backbone has the channels of the autoencoder that it is given."""
    seeds = [f"{key}={cell.seed}" for key in ("fit.seed", "model.seed", "model.backbone.seed")]
    settings = [f"output={model_folder(study, cell).parent}", *seeds, *cell.row.settings]
    vae = Path(load_train_config(study.training, settings).model.vae)
    channels = read_json(vae / "config.json")["z_dim"]
    return load_train_config(study.training, [*settings, f"model.backbone.latent_channels={channels}"])


def model_folder(study: ArmStudyConfig, cell: Cell) -> Path:
    """Where the trained model is."""
    return Path(study.output) / cell.key / "model"


def run_cell(study: ArmStudyConfig, cell: Cell, clips: TestClips) -> dict[str, Any]:
    """Train what is not trained yet, and score it."""
    folder = model_folder(study, cell)
    if not folder.exists() and not train(training_config(study, cell), True):
        raise StoppedError(f"{cell.key} was stopped; start the study again to go on")
    model = WorldModel.from_pretrained(folder)
    return {
        **score_model(model, clips, diagnosed_clips=study.diagnosed_clips),
        **({} if model.interface.concepts is None else score_causes(model, clips)),
        "interface_parameters": sum(weight.numel() for weight in model.interface.parameters()),
    }
