"""Train and score every row of a study, seed by seed; a killed study resumes where it stopped.

python eval/study.py disentanglement configs/disentanglement/rooms.yaml --out outputs/disentanglement/rooms
python eval/study.py disentanglement STUDY --out FOLDER --seeds 1 num_votes=1000 dci_train=1000 dci_test=500
python eval/study.py disentanglement STUDY --out FOLDER --report

Writes OUT/ROW/seedN (runs and scores), OUT/logs, OUT/failures.json, OUT/report.{html,md} and the numbers of
its tables, a line per seed, in OUT/cells.jsonl. A row that fails is recorded, rows that need it are skipped,
the others continue. Exit code 0 all done, 1 some rows failed, 2 wrong study or results of other settings, 130
stopped by a signal, 143 a training was stopped by one.
"""

import argparse
import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

from studies.child_process import interrupt_on_signals
from studies.disentanglement.report import Origin, write_report
from studies.disentanglement.rows import Study, read_study
from studies.disentanglement.tables import read_models
from studies.disentanglement.work import Failure, check_unchanged, read_failures, run_rows
from worldmodel.cli_errors import one_way_out
from worldmodel.config import load_config
from worldmodel.files import write_text
from worldmodel.mddiff.data.factors import open_factor_data
from worldmodel.mddiff.evaluation.scores import EvaluationConfig

EXIT_INTERRUPTED = 130  # 128 + SIGINT


def run_study(study: Study, runs: Path, seeds: range, overrides: list[str]) -> list[Failure]:
    """Run all rows; failures are saved as soon as they occur."""
    check_unchanged(study, runs, seeds, overrides)
    runs.mkdir(parents=True, exist_ok=True)
    names = {row.name for row in study.rows}
    others = [old for old in read_failures(runs) if old.row not in names or old.seed not in seeds]
    failures: list[Failure] = []
    for row, seed, failure in run_rows(study, runs, seeds, overrides):
        print(f"{row.name}, seed {seed}: {failure.text if failure else 'done'}", flush=True)
        failures += [failure] if failure else []
        records = [asdict(failure) for failure in (*others, *failures)]
        write_text(runs / "failures.json", json.dumps(records, indent=1) + "\n")
    return failures


def report(origin: Origin, overrides: list[str]) -> Path:
    """Write the page of the rows scored so far."""
    study, runs = origin.study, origin.runs
    models = read_models(runs, study)
    if not models:
        raise ValueError(f"nothing is scored in {runs} yet")
    config = load_config(EvaluationConfig, None, [*study.data, *overrides])
    dataset = open_factor_data(config.data)
    return write_report(origin, models, dataset, read_failures(runs), ddim_steps=config.ddim_steps)


@one_way_out
def main(argv: list[str] | None = None) -> int:
    """Parse arguments and run."""
    arguments = _parser().parse_intermixed_args(argv)
    runs, overrides, failures = arguments.out, arguments.overrides, []
    try:
        study = read_study(arguments.study)
        if not arguments.report:
            interrupt_on_signals()
            chosen = _only(study, arguments.only) if arguments.only else study
            failures = run_study(chosen, runs, range(arguments.seeds), overrides)
        words = shlex.join(sys.argv[1:] if argv is None else argv)
        command = f"python eval/study.py disentanglement {words}"
        print(report(Origin(command, arguments.study, study, runs, arguments.results or runs), overrides))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if failures else 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 1 if failures else 0


def _only(study: Study, names: str) -> Study:
    """The study with these rows only; rows they need must be trained already."""
    chosen = names.split(",")
    if unknown := sorted(set(chosen) - {row.name for row in study.rows}):
        raise ValueError(f"--only: the study has no row {unknown[0]!r}")
    return replace(study, rows=tuple(row for row in study.rows if row.name in chosen))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "study", type=Path, metavar="STUDY.yaml", help="see eval/studies/disentanglement/rows.py"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the evaluation")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this, not included")
    parser.add_argument("--only", metavar="NAME,NAME", help="these rows alone")
    parser.add_argument(
        "--results", type=Path, help="folder of cells.jsonl, which studies may share (default: OUT)"
    )
    parser.add_argument("--report", action="store_true", help="only write the page of what is scored")
    return parser
