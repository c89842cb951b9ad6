"""The runs of Table 2: all trainings and evaluations.

OUTPUT/pretrained/REGIME               one model per regime, on the source robots (unless one is given, or the
                                       backbone alone is the start); with mcl_pretraining REGIME_mcl as well
OUTPUT/trained/MODEL/seed0             fine-tuned on the little data of the target robot
OUTPUT/rollouts/ROW/seed0/target       report of worldmodel rollout on held-out episodes; transfer likewise
OUTPUT/logs/...                        what each of them printed
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from studies.cells import ROLL_OUT, TRAIN, Cell
from worldmodel.evaluation.predictors import Drive
from worldmodel.models.config import Regime

TASKS = ("target", "transfer")


@dataclass(frozen=True)
class Row:
    """A row of the table: a trained model and what drives it."""

    title: str
    model: str  # name of the fine-tuned model; two rows may share one
    regime: Regime
    has_mcl: bool = False
    drive: Drive = "robot"


ROWS = {
    "no_action": Row("no action", "no_action", "no_action"),
    "acg": Row("ACG", "acg", "acg"),
    "acg_mcl": Row("ACG+MCL", "acg_mcl", "acg", has_mcl=True),
    "lacg": Row("LACG", "lacg", "lacg", drive="latent"),
    "lacg_mcl": Row("LACG+MCL", "lacg_mcl", "lacg", has_mcl=True, drive="latent"),
    "lacg_controller": Row("LACG+controller", "lacg", "lacg"),
}


@dataclass(frozen=True)
class PretrainedModels:
    """World models to fine-tune, folders or hub ids; empty: pretrained here, on `source`.

    Cells refer to them by name: after another training under the same name, use another output.
    """

    no_action: str = ""  # of regime no_action
    acg: str = ""  # of regime acg
    lacg: str = ""  # of regime lacg


@dataclass(frozen=True)
class Table2Config:
    """The protocol: data, models, budgets. Settings are key=value of the commands that the cells run."""

    output: str = "outputs/table2"  # folder of all cells and of the table
    # source: a world model of the source robots. backbone: what `training` names, without any robot data (the
    # plain reading of the paper: a video model, the little data of one task, then the other task).
    start: Literal["source", "backbone"] = "source"  # what is fine-tuned on `target`
    source: tuple[str, ...] = ()  # datasets of the source robots, for pretraining
    target: tuple[str, ...] = ()  # the small data of the target robot, for fine-tuning
    target_test: str = ""  # held-out episodes of the target robot, the task of `target`
    transfer_test: str = ""  # episodes of the target robot, a task that it was never trained on
    autoencoder: str = ""  # folder or hub id; empty: what the training config names
    latents: str = ""  # folder of the latent cache; empty: what the training config names
    pretrained: PretrainedModels = field(default_factory=PretrainedModels)
    training: str = "configs/desk/streaming.yaml"  # config of `worldmodel train`; the base of every training
    training_settings: tuple[str, ...] = ()  # additional key=value for every training
    pretraining_steps: int = 15000  # optimizer steps
    pretraining_settings: tuple[str, ...] = ()  # key=value, pretraining only
    finetuning_steps: int = 2000  # optimizer steps
    finetuning_settings: tuple[str, ...] = ()  # key=value, fine-tuning only
    mcl_settings: tuple[str, ...] = ("model.mcl.mode=first_order",)  # of the rows with MCL
    mcl_pretraining: bool = False  # rows with MCL have it in pretraining too, in a model of their own
    gpus: str = ""  # NxNAME as for `worldmodel estimate`: trainings that need more memory are refused
    rollout_settings: tuple[str, ...] = ("held_out.split=all", "held_out.episodes=60")  # of rollout
    transfer_settings: tuple[str, ...] = ()  # additional key=value of rollout on transfer_test
    # For the dry run: the standard deviation over episodes of a difference of two rows in PSNR.
    spread: float = 0.0  # dB; 0: of earlier runs
    launch: tuple[str, ...] = ()  # what starts a training, accelerate launch ...; empty: this Python
    seeds: tuple[int, ...] = (0, 1, 2)  # of fine-tuning: order of the data, noise and new weights
    rows: tuple[str, ...] = tuple(ROWS)  # which rows

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.rows) - set(ROWS)):
            raise ValueError(f"rows are {', '.join(ROWS)}; got {', '.join(unknown)}")
        for name in ("target", "target_test", "transfer_test", "rows", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        if self.start == "backbone":
            if self.mcl_pretraining or any(getattr(self.pretrained, name) for name in self.regimes):
                raise ValueError(
                    "start=backbone has no pretraining: leave out `pretrained` and mcl_pretraining"
                )
        elif self.mcl_pretraining and any(getattr(self.pretrained, name) for name in self.regimes):
            raise ValueError("mcl_pretraining pretrains every row alike: leave out `pretrained`")
        elif not self.source and not all(getattr(self.pretrained, name) for name in self.regimes):
            raise ValueError("source must name datasets where a regime in `pretrained` names no model")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """The regimes that the rows need."""
        return tuple(dict.fromkeys(ROWS[name].regime for name in self.rows))


def plan(config: Table2Config) -> list[Cell]:
    """All cells in order of execution: a whole table of one seed comes before the next seed."""
    output = Path(config.output)
    bases = {_base(config, name): ROWS[name] for name in config.rows} if config.start == "source" else {}
    cells = [
        _pretraining(config, output, base, row)
        for base, row in bases.items()
        if not getattr(config.pretrained, row.regime)
    ]
    for seed in config.seeds:
        trained = dict.fromkeys(ROWS[name].model for name in config.rows)
        cells += [_finetuning(config, output, model, seed) for model in trained]
        cells += [_rollouts(config, output, name, seed, task) for name in config.rows for task in TASKS]
    return cells


def rollout_folder(output: Path, row: str, seed: int, task: str) -> Path:
    """Folder of a row's report."""
    return output / "rollouts" / row / f"seed{seed}" / task


def training_folder(output: Path, row: str, seed: int) -> Path:
    """Folder of the training that a row shows."""
    return output / "trained" / ROWS[row].model / f"seed{seed}"


def _base(config: Table2Config, name: str) -> str:
    """The pretrained model of a row: with MCL a model of its own, if MCL acts in pretraining."""
    row = ROWS[name]
    return row.model if config.mcl_pretraining else row.regime


def _pretraining(config: Table2Config, output: Path, base: str, row: Row) -> Cell:
    settings = (
        f"model.regime={row.regime}",
        f"data.paths=[{','.join(config.source)}]",
        f"fit.steps={config.pretraining_steps}",
        *config.pretraining_settings,
        *(config.mcl_settings if config.mcl_pretraining and row.has_mcl else ()),
    )
    return _training(config, output, f"pretrained/{base}", settings)


def _finetuning(config: Table2Config, output: Path, model: str, seed: int) -> Cell:
    name, row = next((name, row) for name, row in ROWS.items() if row.model == model)
    given = getattr(config.pretrained, row.regime)
    before = f"pretrained/{_base(config, name)}"
    start = (f"start_from={given or output / before / 'model'}",) if config.start == "source" else ()
    settings = (
        *start,
        f"model.regime={row.regime}",
        f"data.paths=[{','.join(config.target)}]",
        f"fit.steps={config.finetuning_steps}",
        f"fit.seed={seed}",
        *config.finetuning_settings,
        *(config.mcl_settings if row.has_mcl else ()),
    )
    needs = (before,) if start and not given else ()
    return _training(config, output, f"trained/{model}/seed{seed}", settings, needs)


def _training(
    config: Table2Config, output: Path, name: str, settings: Sequence[str], needs: tuple[str, ...] = ()
) -> Cell:
    places = {"model.vae": config.autoencoder, "data.latents": config.latents}
    arguments = (
        config.training,
        f"output={output / name}",
        *(f"{key}={value}" for key, value in places.items() if value),
        *config.training_settings,
        *settings,
    )
    launch = config.launch or (sys.executable,)
    return Cell(name, output / name, TRAIN, arguments, launch, output / name / "model", needs)


def _rollouts(config: Table2Config, output: Path, name: str, seed: int, task: str) -> Cell:
    row, folder = ROWS[name], rollout_folder(output, name, seed, task)
    trained = f"trained/{row.model}/seed{seed}"
    data = config.target_test if task == "target" else config.transfer_test
    arguments = (
        str(output / trained / "model"),
        data,
        f"output={folder}",
        f"drive={row.drive}",
        *config.rollout_settings,
        *(config.transfer_settings if task == "transfer" else ()),
    )
    place = folder.relative_to(output).as_posix()
    return Cell(place, folder, ROLL_OUT, arguments, (sys.executable,), folder / "report.html", (trained,))
