"""Runs a study: each row is trained in a separate process, then scored; a failure affects only its row."""

import json
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from studies.child_process import StoppedError, is_same_command, record_command, run_logged
from studies.disentanglement.first_stage import SCORES_FILE, is_first_stage, score_first_stage
from studies.disentanglement.rows import POINTS, Row, Study
from worldmodel.cli_errors import STOPPED
from worldmodel.config import load_config
from worldmodel.files import fingerprint, write_text
from worldmodel.mddiff.evaluation.scores import EvaluationConfig, score_folder

SAME_RESULT = ("out", "jobs", "batch")  # settings of the evaluation that do not affect scores
COMMIT_FILE = "commit.txt"  # in a run folder: the commit that trained it
WORLDMODEL = (sys.executable, "-m", "worldmodel")  # starts a sub-command
PROJECT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Failure:
    """A row without a result, and the reason."""

    row: str
    seed: int
    state: Literal["failed", "skipped"]
    error: str

    @property
    def text(self) -> str:
        """Text on one line."""
        return f"{self.state}: {self.error}"


class TrainingError(RuntimeError):
    """A training ended with an error."""


def read_failures(runs: Path) -> list[Failure]:
    """The failures of the last study in this folder."""
    file = runs / "failures.json"
    return [Failure(**entry) for entry in json.loads(file.read_text())] if file.exists() else []


def check_unchanged(study: Study, runs: Path, seeds: range, overrides: list[str]) -> None:
    """Refuse existing results of other settings before anything runs."""
    for seed in seeds:
        for row in study.rows:
            if row.command:
                is_same_command(row.folder(runs, seed), recorded_words(row, study))
            for point in POINTS if row.is_scored else ():
                _check_scores(_evaluation(row, study, runs, seed, point, overrides))


def run_rows(
    study: Study, runs: Path, seeds: range, overrides: list[str]
) -> Iterator[tuple[Row, int, Failure | None]]:
    """All rows of one seed come before the next seed, so that an interrupted study is still comparable."""
    for seed in seeds:
        untrained: set[str] = set()
        for row in study.rows:
            if missing := [name for name in row.needs if name in untrained]:
                untrained.add(row.name)
                yield row, seed, Failure(row.name, seed, "skipped", f"{missing[0]} has no model")
                continue
            try:
                train_row(row, study, runs, seed)
                (score_row if row.is_scored else score_prepared)(row, study, runs, seed, overrides)
            except TrainingError as error:
                untrained.add(row.name)
                yield row, seed, Failure(row.name, seed, "failed", str(error))
            except StoppedError:
                raise
            except Exception as error:  # a bug in one evaluation must not affect the other rows
                with _log(runs, row, seed).open("a") as log:
                    traceback.print_exc(file=log)
                yield row, seed, Failure(row.name, seed, "failed", f"{type(error).__name__}: {error}")
            else:
                yield row, seed, None


def train_row(row: Row, study: Study, runs: Path, seed: int) -> None:
    """Train in a separate process, resuming from the newest checkpoint; skipped if the model exists."""
    folder = row.folder(runs, seed)
    log = _log(runs, row, seed)
    log.parent.mkdir(parents=True, exist_ok=True)
    recorded = recorded_words(row, study)
    if not row.command or (is_same_command(folder, recorded) and (folder / "model").exists()):
        return
    record_command(folder, recorded)
    write_text(folder / COMMIT_FILE, current_commit() + "\n")
    words = [word.replace("{runs}", str(runs)).replace("{seed}", str(seed)) for word in recorded]
    command = [*WORLDMODEL, *words, f"output={folder}", f"fit.seed={seed}", "--resume"]
    print(f"{shlex.join(command)} >> {log}", flush=True)
    code = run_logged(command, log)
    if code == STOPPED:
        raise StoppedError(f"{row.name}, seed {seed} was stopped; start the study again to go on")
    if code or not (folder / "model").exists():
        raise TrainingError(f"exit code {code}, {last_line(log)} ({log})")


def recorded_words(row: Row, study: Study) -> list[str]:
    """The command recorded in a run's folder, independent of its location."""
    return [*row.command, *study.data]


def current_commit() -> str:
    """Commit of this project, marked if files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def last_line(log: Path) -> str:
    """The last line of a log."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
    return lines[-1] if lines else "nothing was printed"


def score_row(row: Row, study: Study, runs: Path, seed: int, overrides: list[str]) -> None:
    """Score last and best weights unless already scored."""
    folder = row.folder(runs, seed)
    for point, name in POINTS.items():
        model, config = folder / name, _evaluation(row, study, runs, seed, point, overrides)
        out = Path(config.out)
        if out.exists() or not model.exists():
            continue
        if point == "best" and _weights(model) == _weights(folder / POINTS["last"]):  # often equal
            last = json.loads((folder / f"scores_{row.name}_last.json").read_text())
            same = last | {"model": str(model), "evaluation": last["evaluation"] | {"out": str(out)}}
            write_text(out, json.dumps(same, indent=1) + "\n")
            continue
        scores = score_folder(model, config)["scores"]
        print(row.name, point, seed, {name: round(entry["value"], 3) for name, entry in scores.items()})


def score_prepared(row: Row, study: Study, runs: Path, seed: int, overrides: list[str]) -> None:
    """Score the reconstructions of a prepared first stage unless already done.

    Other models are not scored.
    """
    folder = row.folder(runs, seed)
    model, out = folder / POINTS["last"], folder / SCORES_FILE
    if out.exists() or not is_first_stage(model):
        return
    config = load_config(EvaluationConfig, None, [*study.data, *overrides])
    result = score_first_stage(model, config, out)
    print(row.name, seed, f"PSNR {result['psnr']['mean']:.2f}, {result['codes_used']} codes used")


def _evaluation(
    row: Row, study: Study, runs: Path, seed: int, point: str, overrides: list[str]
) -> EvaluationConfig:
    out = row.folder(runs, seed) / f"scores_{row.name}_{point}.json"
    return load_config(EvaluationConfig, None, [*study.data, *row.scoring, *overrides, f"out={out}"])


def _check_scores(config: EvaluationConfig) -> None:
    out = Path(config.out)
    if not out.exists():
        return
    found, wanted = json.loads(out.read_text())["evaluation"], json.loads(json.dumps(asdict(config)))
    if changed := sorted(key for key in wanted if key not in SAME_RESULT and found.get(key) != wanted[key]):
        raise ValueError(f"{out} was scored with another {', '.join(changed)}; use another --out")


def _weights(model: Path) -> str:
    return fingerprint(model, (".safetensors",))


def _log(runs: Path, row: Row, seed: int) -> Path:
    return runs / "logs" / f"{row.name}_seed{seed}.log"
