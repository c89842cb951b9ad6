"""Does MCL help a world model follow actions? One command per phase, which may be interrupted:

python eval/study.py mcl configs/mcl/study.yaml --phase choose  [key=value ...] [--dry-run]
python eval/study.py mcl configs/mcl/study.yaml --phase confirm [key=value ...] [--gradients]

`choose` ends with the arm of each regime to write into the config as `chosen`. Finished cells are skipped.
The tables in OUTPUT/report.{md,html} are rewritten after every evaluation. docs/results/mcl.md is the
protocol.
"""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from studies.cells import work_through
from studies.child_process import interrupt_on_signals
from studies.command_line import study_parser
from studies.mcl.cells import PHASES, MclStudyConfig, plan
from studies.mcl.gradients import measure_gradients
from studies.mcl.results import choose_arms, write_study
from worldmodel.cli_errors import one_way_out
from worldmodel.config import load_config


def run(config: MclStudyConfig, phase: str) -> int:
    """Run all cells of a phase."""
    logs = Path(config.output) / "logs"
    code = work_through(plan(config, phase), logs, partial(write_study, config))
    if phase == "choose":
        print(f"chosen: {choose_arms(config)}")
    return code


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = study_parser(MclStudyConfig, __doc__)
    parser.add_argument("--phase", choices=PHASES, required=True)
    parser.add_argument(
        "--gradients", action="store_true", help="measure MCL's share of the backbone's gradient, and stop"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the cells and stop")
    arguments = parser.parse_intermixed_args(argv)
    config = load_config(MclStudyConfig, arguments.config, arguments.overrides)
    if arguments.dry_run:
        for cell in plan(config, arguments.phase):
            print(shlex.join(["worldmodel", cell.command, *cell.arguments]))
        return 0
    if arguments.gradients:
        for file in measure_gradients(config, arguments.phase):
            print(f"wrote {file}", flush=True)
        write_study(config)
        return 0
    interrupt_on_signals()
    return run(config, arguments.phase)
