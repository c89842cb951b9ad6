"""Trainings and evaluations of a study as cells: what they are told is checked, what is not done is run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from studies.child_process import is_same_command, record_command, run_forked, run_logged
from worldmodel.config import load_config
from worldmodel.evaluation.rollouts.run import RolloutsConfig
from worldmodel.training.world_model import TrainConfig

PROJECT = Path(__file__).resolve().parents[2]
TRAIN, ROLL_OUT = PROJECT / "training" / "train_world_model.py", PROJECT / "eval" / "rollouts.py"


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


def work_through(cells: Sequence[Cell], logs: Path, after_report: Callable[[], object]) -> int:
    """Run the cells and say how each ended; gives the exit code, 1 if some failed.

    Args:
        cells: what is to be done.
        logs: folder of what the cells print.
        after_report: called whenever there is another evaluation, and once for those of earlier runs.
    """
    failed, before = 0, {cell.name for cell in cells if cell.is_done}
    if any(cell.script == ROLL_OUT for cell in cells if cell.name in before):
        after_report()
    for number, (cell, state) in enumerate(run_cells(cells, logs), 1):
        log = f": see {log_file(logs, cell)}" if state == "failed" else ""
        print(f"[{number}/{len(cells)}] {state} {cell.name}{log}", flush=True)
        failed += state != "done"
        if state == "done" and cell.script == ROLL_OUT and cell.name not in before:
            after_report()
    return 1 if failed else 0


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
