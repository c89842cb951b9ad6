"""Runs a study as cells (trainings and evaluations): checks their settings and runs the unfinished ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from studies.child_process import is_same_command, record_command, run_logged
from worldmodel.config import load_config
from worldmodel.evaluation.rollouts.run import RolloutsConfig
from worldmodel.training.world_model import TrainConfig

TRAIN, ROLL_OUT = "train", "rollout"  # sub-commands of worldmodel


@dataclass(frozen=True)
class Cell:
    """One training or evaluation."""

    name: str  # its folder below OUTPUT
    folder: Path
    command: str  # TRAIN or ROLL_OUT
    arguments: tuple[str, ...]  # of the command
    launch: tuple[str, ...]  # what starts Python, or a launcher
    result: Path  # exists once the cell is done
    needs: tuple[str, ...] = ()  # cells that must be done first

    @property
    def is_done(self) -> bool:
        """Whether an earlier run finished it; existing results of other settings are refused."""
        return is_same_command(self.folder, self.arguments) and self.result.exists()


def check_settings(cells: Sequence[Cell]) -> list[tuple[Cell, TrainConfig | RolloutsConfig]]:
    """Load all settings first, so that a typo fails now rather than after hours; duplicates are omitted."""
    checked = set()
    loaded: list[tuple[Cell, TrainConfig | RolloutsConfig]] = []
    for cell in cells:
        given = cell.arguments if cell.command == TRAIN else cell.arguments[2:]
        # Cells that differ only in folder and seed are checked once.
        what = tuple(word for word in given if not word.startswith(("output=", "fit.seed=", "start_from=")))
        if what in checked:
            continue
        checked.add(what)
        try:
            if cell.command == TRAIN:
                loaded.append((cell, load_config(TrainConfig, given[0], given[1:])))
            else:
                loaded.append((cell, load_config(RolloutsConfig, None, given)))
        except ValueError as error:
            raise ValueError(f"{cell.name}: {error}") from error
    return loaded


def check_files(settings: Sequence[tuple[Cell, TrainConfig | RolloutsConfig]]) -> None:
    """Refuse missing files and folders; hub ids are not checked."""
    for cell, config in settings:
        for key, (value, maker) in _named_files(cell, config).items():
            # As in `checkpoint.locate`, and a hub's owner is no local folder; a prompt is always a file.
            is_hub_id = value.count("/") == 1 and not value.startswith((".", "/")) and key != "model.prompt"
            is_hub_id = is_hub_id and not Path(value).parent.exists()
            if value and not is_hub_id and not Path(value).exists():
                raise ValueError(f"{cell.name}: {key} names {value}, which is not there: {maker} makes it")


def _named_files(cell: Cell, config: TrainConfig | RolloutsConfig) -> dict[str, tuple[str, str]]:
    """Key -> the file or folder it names, and the command that creates such a thing."""
    if isinstance(config, RolloutsConfig):
        judge = (config.judge, "worldmodel train")
        return {"locator": (config.locator, "worldmodel train-locator"), "judge": judge}
    if config.start_from:  # everything else in `model` comes from that folder, which an earlier cell creates
        return {} if cell.needs else {"start_from": (config.start_from, "worldmodel train")}
    return {
        "model.pretrained": (config.model.pretrained, "worldmodel train"),
        "model.vae": (config.model.vae, "worldmodel train-autoencoder"),
        "model.prompt": (config.model.prompt, "worldmodel encode-prompt"),
    }


def run_cells(
    cells: Sequence[Cell], logs: Path
) -> Iterator[tuple[Cell, Literal["done", "failed", "blocked"]]]:
    """Run unfinished cells; a failure blocks only the cells that need it. Yields each cell as it ends."""
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
    """Run the cells and print the outcome of each; returns the exit code, 1 if some failed.

    Args:
        cells: what is to be done.
        logs: folder for the output of the cells.
        after_report: called after each new evaluation, and once for those of earlier runs.
    """
    failed, before = 0, {cell.name for cell in cells if cell.is_done}
    if any(cell.command == ROLL_OUT for cell in cells if cell.name in before):
        after_report()
    for number, (cell, state) in enumerate(run_cells(cells, logs), 1):
        log = f": see {log_file(logs, cell)}" if state == "failed" else ""
        print(f"[{number}/{len(cells)}] {state} {cell.name}{log}", flush=True)
        failed += state != "done"
        if state == "done" and cell.command == ROLL_OUT and cell.name not in before:
            after_report()
    return 1 if failed else 0


def log_file(logs: Path, cell: Cell) -> Path:
    """The log of a cell, over all its attempts."""
    return logs / f"{cell.name.replace('/', '_')}.log"


def _run(cell: Cell, log: Path) -> bool:
    record_command(cell.folder, cell.arguments)
    resume = ["--resume"] if cell.command == TRAIN else []  # rollouts resume anyway
    code = run_logged([*cell.launch, "-m", "worldmodel", cell.command, *cell.arguments, *resume], log)
    return code == 0 and cell.result.exists()
