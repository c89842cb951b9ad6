"""The work of Table 2 as cells: which trainings and evaluations there are, and running those not yet done.

OUTPUT/pretrained/REGIME               one model per regime, on the source robots (unless one is given)
OUTPUT/trained/MODEL/seed0             fine-tuned on the little data of the target robot
OUTPUT/rollouts/ROW/seed0/target       report of eval/rollouts.py on held-out episodes; transfer likewise
OUTPUT/logs/...                        what each of them printed
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from studies.child_process import is_same_command, record_command, run_forked, run_logged
from worldmodel.config import load_config
from worldmodel.evaluation.predictors import Drive
from worldmodel.evaluation.rollouts.run import RolloutsConfig
from worldmodel.models.world_model.config import Regime
from worldmodel.training.runs.world_model import TrainConfig

PROJECT = Path(__file__).resolve().parents[3]
TRAIN, ROLL_OUT = PROJECT / "training" / "train_world_model.py", PROJECT / "eval" / "rollouts.py"
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

    Cells know them by name: after another training under the same name, use another output.
    """

    no_action: str = ""  # of regime no_action
    acg: str = ""  # of regime acg
    lacg: str = ""  # of regime lacg


@dataclass(frozen=True)
class Table2Config:
    """The protocol: data, models, budgets. Settings are key=value of the scripts that the cells run."""

    output: str = "outputs/table2"  # folder of all cells and of the table
    source: tuple[str, ...] = ()  # datasets of the source robots, for pretraining
    target: tuple[str, ...] = ()  # the little data of the target robot, for fine-tuning
    target_test: str = ""  # held-out episodes of the target robot, the task of `target`
    transfer_test: str = ""  # episodes of the target robot, a task that it was never trained on
    autoencoder: str = ""  # folder or hub id; empty: what the training config names
    latents: str = ""  # folder of the latent cache; empty: what the training config names
    pretrained: PretrainedModels = field(default_factory=PretrainedModels)
    training: str = "configs/desk/streaming.yaml"  # of train_world_model.py; the base of every training
    training_settings: tuple[str, ...] = ()  # key=value beside it, for every training
    pretraining_steps: int = 15000  # optimizer steps
    pretraining_settings: tuple[str, ...] = ()  # key=value, pretraining only
    finetuning_steps: int = 2000  # optimizer steps
    finetuning_settings: tuple[str, ...] = ()  # key=value, fine-tuning only
    mcl_settings: tuple[str, ...] = ("model.mcl.mode=first_order",)  # of the rows with MCL
    gpus: str = ""  # NxNAME as for `worldmodel estimate`: trainings that need more memory are refused
    rollout_settings: tuple[str, ...] = ("held_out.split=all", "held_out.episodes=60")  # of rollouts.py
    launch: tuple[str, ...] = ()  # what starts a training, accelerate launch ...; empty: this Python
    seeds: tuple[int, ...] = (0, 1, 2)  # of fine-tuning: order of the data, noise and new weights
    rows: tuple[str, ...] = tuple(ROWS)  # which rows

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.rows) - set(ROWS)):
            raise ValueError(f"rows are {', '.join(ROWS)}; got {', '.join(unknown)}")
        for name in ("target", "target_test", "transfer_test", "rows", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        if not self.source and not all(getattr(self.pretrained, name) for name in self.regimes):
            raise ValueError("source must name datasets where a regime in `pretrained` names no model")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """Those that the rows need."""
        return tuple(dict.fromkeys(ROWS[name].regime for name in self.rows))


@dataclass(frozen=True)
class Cell:
    """One training or evaluation."""

    name: str  # its folder below OUTPUT
    folder: Path
    script: Path
    arguments: tuple[str, ...]  # what the script is told
    launch: tuple[str, ...]  # what starts it, nothing: a fork; the result does not depend on it
    result: Path  # there when the cell is done
    needs: tuple[str, ...] = ()  # cells that must be done before

    @property
    def is_done(self) -> bool:
        """Whether an earlier run finished it; a cell of other settings in its place is refused."""
        return is_same_command(self.folder, self.arguments) and self.result.exists()


def plan(config: Table2Config) -> list[Cell]:
    """All cells in the order of work: a whole table of one seed comes before the next seed."""
    output = Path(config.output)
    cells = [
        _pretraining(config, output, regime)
        for regime in config.regimes
        if not getattr(config.pretrained, regime)
    ]
    for seed in config.seeds:
        trained = dict.fromkeys(ROWS[name].model for name in config.rows)
        cells += [_finetuning(config, output, model, seed) for model in trained]
        cells += [_rollouts(config, output, name, seed, task) for name in config.rows for task in TASKS]
    return cells


def check_settings(cells: Sequence[Cell]) -> list[tuple[Cell, TrainConfig | RolloutsConfig]]:
    """Refuse a typo now rather than after hours; gives what the cells are told, once where it is the same."""
    checked = set()
    loaded: list[tuple[Cell, TrainConfig | RolloutsConfig]] = []
    for cell in cells:
        given = cell.arguments if cell.script == TRAIN else cell.arguments[2:]
        # Cells that differ by place and seed alone are checked once.
        what = tuple(word for word in given if not word.startswith(("output=", "fit.seed=", "start_from=")))
        if what in checked:
            continue
        checked.add(what)
        try:
            if cell.script == TRAIN:
                loaded.append((cell, load_config(TrainConfig, given[0], given[1:])))
            else:
                loaded.append((cell, load_config(RolloutsConfig, None, given)))
        except ValueError as error:
            raise ValueError(f"{cell.name}: {error}") from error
    return loaded


def check_files(settings: Sequence[tuple[Cell, TrainConfig | RolloutsConfig]]) -> None:
    """Refuse files and folders that are not there; hub ids are taken on trust."""
    for cell, config in settings:
        for key, (value, maker) in _named_files(cell, config).items():
            # As in `checkpoint.locate`, and a hub's owner is no folder of ours; a prompt is always a file.
            is_hub_id = value.count("/") == 1 and not value.startswith((".", "/")) and key != "model.prompt"
            is_hub_id = is_hub_id and not Path(value).parent.exists()
            if value and not is_hub_id and not Path(value).exists():
                raise ValueError(f"{cell.name}: {key} names {value}, which is not there: {maker} makes it")


def _named_files(cell: Cell, config: TrainConfig | RolloutsConfig) -> dict[str, tuple[str, str]]:
    """Key -> what it names, and the script that makes such a thing."""
    if isinstance(config, RolloutsConfig):
        judge = (config.judge, "training/train_world_model.py")
        return {"locator": (config.locator, "eval/train_locator.py"), "judge": judge}
    if config.start_from:  # all that `model` names is in that folder; another cell's is made in time
        return {} if cell.needs else {"start_from": (config.start_from, "training/train_world_model.py")}
    return {
        "model.pretrained": (config.model.pretrained, "training/train_world_model.py"),
        "model.vae": (config.model.vae, "training/train_autoencoder.py"),
        "model.prompt": (config.model.prompt, "training/encode_prompt.py"),
    }


def rollout_folder(output: Path, row: str, seed: int, task: str) -> Path:
    """Where the report of a row is."""
    return output / "rollouts" / row / f"seed{seed}" / task


def run_cells(
    cells: Sequence[Cell], logs: Path
) -> Iterator[tuple[Cell, Literal["done", "failed", "blocked"]]]:
    """Run what is not done; a failure blocks only the cells that need it. Yields each cell as it ends."""
    missing: set[str] = set()
    for cell in cells:
        if missing.intersection(cell.needs):
            missing.add(cell.name)
            yield cell, "blocked"
        elif cell.is_done or _run(cell, log_file(logs, cell)):
            yield cell, "done"
        else:
            missing.add(cell.name)
            yield cell, "failed"


def log_file(logs: Path, cell: Cell) -> Path:
    """What the cell printed, all its attempts."""
    return logs / f"{cell.name.replace('/', '_')}.log"


def _run(cell: Cell, log: Path) -> bool:
    record_command(cell.folder, cell.arguments)
    told = [*cell.arguments, *(["--resume"] if cell.script == TRAIN else [])]  # rollouts go on by themselves
    if cell.launch:
        code = run_logged([*cell.launch, str(cell.script), *told], log)
    else:
        code = run_forked(cell.script, told, log)
    return code == 0 and cell.result.exists()


def _pretraining(config: Table2Config, output: Path, regime: Regime) -> Cell:
    settings = (
        f"model.regime={regime}",
        f"data.paths=[{','.join(config.source)}]",
        f"fit.steps={config.pretraining_steps}",
        *config.pretraining_settings,
    )
    return _training(config, output, f"pretrained/{regime}", settings)


def _finetuning(config: Table2Config, output: Path, model: str, seed: int) -> Cell:
    row = next(row for row in ROWS.values() if row.model == model)
    given = getattr(config.pretrained, row.regime)
    before = f"pretrained/{row.regime}"
    settings = (
        f"start_from={given or output / before / 'model'}",
        f"model.regime={row.regime}",
        f"data.paths=[{','.join(config.target)}]",
        f"fit.steps={config.finetuning_steps}",
        f"fit.seed={seed}",
        *config.finetuning_settings,
        *(config.mcl_settings if row.has_mcl else ()),
    )
    return _training(config, output, f"trained/{model}/seed{seed}", settings, () if given else (before,))


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
    )
    place = folder.relative_to(output).as_posix()
    return Cell(place, folder, ROLL_OUT, arguments, (sys.executable,), folder / "report.html", (trained,))
