"""Train and score every row of a study, seed by seed; a killed study goes on where it was.

python eval/disentanglement_study.py configs/disentanglement/rooms.txt --out outputs/disentanglement/rooms
python eval/disentanglement_study.py STUDY --out FOLDER --seeds 1 num_votes=1000 dci_train=1000 dci_test=500
python eval/disentanglement_study.py STUDY --out FOLDER --report

A study is a text file, one row a line ({runs}: the folder of all runs, {seed}: the seed):
  data    key=value ...                  pictures, for every row
  prepare NAME SCRIPT CONFIG key=value   train, no scores (a first stage)
  train   NAME SCRIPT CONFIG key=value   train, then score the last and the best weights
  score   NAME RUN key=value             score the models of another row in another way
"""

import argparse
import filecmp
import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from eval.disentanglement import EvaluationConfig, score_folder
from eval.disentanglement_report import read_models, write_report
from training.checkpointing import write_atomically
from training.factors import open_factor_data
from training.signals import EXIT_STOPPED
from worldmodel.config import load_config


@dataclass(frozen=True)
class Row:
    """A line of the study that trains or scores."""

    name: str
    run: str  # name of the row whose runs are scored; its own for rows that train
    command: tuple[str, ...]  # script, config and overrides; empty for rows that only score
    scoring: tuple[str, ...]  # overrides of the evaluation
    is_scored: bool


@dataclass(frozen=True)
class Study:
    """The rows in order, and the pictures they share."""

    rows: tuple[Row, ...]
    data: tuple[str, ...]  # overrides data.*=... of training and evaluation


class StoppedError(RuntimeError):
    """A training was stopped by a signal, after saving."""


def read_study(path: Path) -> Study:
    """Parse a study file; ValueError names the line that is wrong."""
    rows: list[Row] = []
    data: tuple[str, ...] = ()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        verb, *words = shlex.split(line)
        where = f"{path}, line {number}"
        if verb == "data":
            data = tuple(words)
        elif verb in ("prepare", "train") and len(words) >= 3:
            rows.append(Row(words[0], words[0], tuple(words[1:]), (), verb == "train"))
        elif verb == "score" and len(words) >= 2:
            if words[1] not in {row.name for row in rows}:
                raise ValueError(f"{where}: no row {words[1]!r} stands above it")
            rows.append(Row(words[0], words[1], (), tuple(words[2:]), True))
        else:
            raise ValueError(f"{where}: expected data, prepare, train or score with its words, got {line!r}")
    if len({row.name for row in rows}) != len(rows):
        raise ValueError(f"{path}: two rows have the same name")
    return Study(tuple(rows), data)


def train_row(row: Row, study: Study, runs: Path, seed: int) -> None:
    """Train in a process of its own, from its newest checkpoint on; nothing to do when the model exists."""
    folder = runs / row.run / f"seed{seed}"
    if not row.command or (folder / "model").exists():
        return
    words = [word.replace("{runs}", str(runs)).replace("{seed}", str(seed)) for word in row.command]
    command = [sys.executable, *words, *study.data, f"output={folder}", f"fit.seed={seed}", "--resume"]
    print(shlex.join(command), flush=True)
    code = subprocess.run(command).returncode
    if code == EXIT_STOPPED:
        raise StoppedError(f"{row.name}, seed {seed} was stopped; start the study again to go on")
    if code:
        raise ValueError(f"{row.name}, seed {seed} failed with exit code {code}")


def score_row(row: Row, study: Study, runs: Path, seed: int, overrides: list[str]) -> None:
    """Score last and best weights unless it is done; results of other settings are refused."""
    folder = runs / row.run / f"seed{seed}"
    settings = [*study.data, *row.scoring, *overrides]
    for point, model in (("last", folder / "model"), ("best", folder / "best")):
        out = folder / f"scores_{row.name}_{point}.json"
        config = load_config(EvaluationConfig, None, [*settings, f"out={out}"])
        if out.exists():
            found, wanted = json.loads(out.read_text())["evaluation"], json.loads(json.dumps(asdict(config)))
            if changed := sorted(key for key in wanted if found.get(key) != wanted[key] and key != "out"):
                raise ValueError(f"{out} was scored with another {', '.join(changed)}; use another --out")
        elif model.exists() and point == "best" and is_copy(folder / "model", model):
            last = (folder / f"scores_{row.name}_last.json").read_text()
            write_atomically(out, json.dumps(json.loads(last) | {"model": str(model)}, indent=1) + "\n")
        elif model.exists():
            scores = score_folder(model, config)["scores"]
            print(row.name, point, seed, {name: round(entry["value"], 3) for name, entry in scores.items()})


def is_copy(first: Path, second: Path) -> bool:
    """Whether two model folders hold the same weights: the best ones are often the last."""
    names = [file.relative_to(first) for file in sorted(first.rglob("*.safetensors"))]
    return all((second / name).exists() and filecmp.cmp(first / name, second / name, False) for name in names)


def run_study(study: Study, runs: Path, seeds: range, overrides: list[str]) -> None:
    """All rows of a seed before the next seed, so that a study cut short still compares."""
    for seed in seeds:
        for row in study.rows:
            train_row(row, study, runs, seed)
            if row.is_scored:
                score_row(row, study, runs, seed, overrides)


def report(study: Study, runs: Path, overrides: list[str]) -> Path:
    """The page of what is scored so far."""
    scored = [row for row in study.rows if row.is_scored]
    models = read_models(runs, [row.name for row in scored], {row.name: row.run for row in scored})
    if not models:
        raise ValueError(f"nothing is scored in {runs} yet")
    config = load_config(EvaluationConfig, None, [*study.data, *overrides])
    return write_report(runs, models, open_factor_data(config.data), ddim_steps=config.ddim_steps)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="STUDY.txt")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the evaluation")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this, not included")
    parser.add_argument("--only", metavar="NAME,NAME", help="these rows alone")
    parser.add_argument("--report", action="store_true", help="only write the page of what is scored")
    arguments = parser.parse_intermixed_args(argv)
    try:
        study = read_study(arguments.study)
        if arguments.only:
            study = replace(
                study, rows=tuple(row for row in study.rows if row.name in arguments.only.split(","))
            )
        if not arguments.report:
            run_study(study, arguments.out, range(arguments.seeds), arguments.overrides)
        print(report(study, arguments.out, arguments.overrides))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except StoppedError as error:
        print(error, file=sys.stderr)
        return EXIT_STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
