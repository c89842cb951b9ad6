"""Train and score every row of the context study; an interrupted study resumes where it stopped.

python eval/study.py context configs/context/study.yaml [key=value ...]        --help lists the keys
python eval/study.py context configs/context/study.yaml --report

Writes RESULTS/cells.jsonl line by line, then RESULTS/tables.md and pictures. Exit code 0 all done, 2 wrong
settings, 130 or 143 stopped by a signal.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from studies.cells_file import finite, open_cells
from studies.command_line import run_and_report
from studies.context.cells import (
    ContextStudyConfig,
    plan,
    reference_record,
    run_cell,
    training_config,
)
from studies.context.report import write_report
from worldmodel.cli_errors import one_way_out

STUDY = "context"


def run(study: ContextStudyConfig) -> None:
    """Run all cells without a record."""
    cells = list(plan(study))
    for cell in cells:
        training_config(study, cell)  # a wrong setting is refused before anything is trained
    records = open_cells(Path(study.results), STUDY)
    for dataset in study.datasets:
        if f"{dataset}/real" not in records:
            records.add(f"{dataset}/real", finite(reference_record(study, dataset)))
    for number, cell in enumerate(cells, 1):
        if cell.key in records:
            continue
        started = time.monotonic()
        record = finite(run_cell(study, cell))
        records.add(cell.key, record)
        shown = {name: round(record[name], 3) for name in ("concept", "composition", "elbo") if record[name]}
        print(f"[{number}/{len(cells)}] {cell.key}: {shown}, {time.monotonic() - started:.0f} s", flush=True)


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_and_report(ContextStudyConfig, __doc__, run, write_report, argv)
