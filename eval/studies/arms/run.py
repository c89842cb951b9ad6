"""Train and score every row of the arm study; a study that was cut off goes on where it was.

python eval/arm_study.py configs/context/arms.yaml [key=value ...]        --help lists the keys
python eval/arm_study.py configs/context/arms.yaml --report

Writes RESULTS/cells.jsonl line by line, then RESULTS/tables.md and videos. Exit code 0 all done, 2 wrong
settings, 130 or 143 stopped by a signal.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from studies.arms.cells import ArmStudyConfig, plan, run_cell, training_config
from studies.arms.report import write_report
from studies.arms.scores import TestClips
from studies.cells_file import finite, open_cells
from studies.command_line import run_and_report
from worldmodel.cli_errors import one_way_out

STUDY = "arms"


def run(study: ArmStudyConfig) -> None:
    """All cells that have no record yet."""
    cells = list(plan(study))
    for cell in cells:
        training_config(study, cell)  # a wrong setting is refused before anything is trained
    records = open_cells(Path(study.results), STUDY)
    clips = TestClips(vars(study.test), study.episodes)
    for number, cell in enumerate(cells, 1):
        if cell.key in records:
            continue
        started = time.process_time()
        record = finite(run_cell(study, cell, clips))
        records.add(cell.key, {**record, "cpu_s": round(time.process_time() - started, 1)})
        shown = {name: round(record[name], 2) for name in ("direct/moving", "added/moving", "type_d")}
        print(f"[{number}/{len(cells)}] {cell.key}: {shown}", flush=True)


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """See the top of the file."""
    return run_and_report(ArmStudyConfig, __doc__, run, write_report, argv)
