"""Ablation of the desk model; may be interrupted and restarted:

python eval/study.py ablation configs/desk/ablation.yaml [key=value ...]        --help lists the keys

Trains every row from scratch with the same small budget, or uses the model that it names, and evaluates it on
held-out episodes. Writes RESULTS/cells.jsonl and RESULTS/tables.md after every evaluation. Finished cells are
skipped. Exit code 0 all done, 1 some failed, 2 wrong settings, 143 stopped by a signal.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from studies.ablation.cells import AblationConfig, AblationRow, change_models, plan, report_folder, seeds_of
from studies.cells import check_settings, work_through
from studies.cells_file import CELLS_FILE, finite
from studies.child_process import interrupt_on_signals
from studies.command_line import study_parser
from studies.table2.results import Evaluated
from worldmodel.cli_errors import STOPPED, one_way_out
from worldmodel.config import load_config
from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.rollouts.results import CEILING, STATIC, TRUE
from worldmodel.files import write_text
from worldmodel.report.intervals import Estimate, mean_estimate

STUDY = "ablation"
COLUMNS = {  # metric -> title and digits
    "clip_psnr": ("clip PSNR dB", 2),
    "moving_clip_psnr": ("moving pixels dB", 2),
    "edges_moving": ("edges", 2),
    "gripper_error": ("gripper error px", 2),
}
DIFFERENCE = "moving_clip_psnr"


def read_rows(config: AblationConfig) -> dict[str, Evaluated]:
    """The rows with a finished report."""
    found = {}
    for row in config.rows:
        folders = {seed: report_folder(config, row, seed) for seed in seeds_of(config, row)}
        done = {seed: folder for seed, folder in folders.items() if (folder / "report.html").exists()}
        if done:
            records = tuple(list(read_records(folder / "clips.jsonl").values()) for folder in done.values())
            found[row.name] = Evaluated(tuple(done), records)
    return found


def estimates(evaluated: Evaluated, video: str = TRUE) -> dict[str, Estimate]:
    """Metric -> mean over seeds, with an interval over episodes."""
    return {metric: mean_estimate(evaluated.scores(metric, video).mean(0)) for metric in COLUMNS}


def difference(evaluated: Evaluated, other: Evaluated) -> tuple[Estimate, list[float]]:
    """Difference to another row in moving pixels, by episode: of the mean over shared seeds, and per seed."""
    seeds = [seed for seed in evaluated.seeds if seed in other.seeds]
    ours, theirs = (
        rows.scores(DIFFERENCE)[[rows.seeds.index(seed) for seed in seeds]] for rows in (evaluated, other)
    )
    return mean_estimate((ours - theirs).mean(0)), np.nanmean(ours - theirs, axis=1).tolist()


def write_results(config: AblationConfig) -> Path:
    """Write RESULTS/cells.jsonl and RESULTS/tables.md for the finished evaluations."""
    found, folder = read_rows(config), Path(config.results)
    lines = [json.dumps({"settings": {"study": STUDY}})]
    for name, evaluated in found.items():
        for number, seed in enumerate(evaluated.seeds):
            one = Evaluated((seed,), evaluated.records[number : number + 1])
            videos = {
                video: {m: e.to_dict() for m, e in estimates(one, video).items()}
                for video in (STATIC, CEILING, TRUE)
            }
            record = {"episodes": len(one.scores("psnr")[0]), **videos}
            lines.append(json.dumps({"key": f"{name}/seed{seed}", "record": finite(record)}))
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CELLS_FILE, "\n".join(lines) + "\n")
    write_text(folder / "tables.md", table(config.rows, found) + "\n")
    return folder / "tables.md"


def table(rows: Sequence[AblationRow], found: Mapping[str, Evaluated]) -> str:
    """One line per row, with the ceiling of its autoencoder and its difference to another row."""
    titles = [title for title, _ in COLUMNS.values()]
    header = [
        "row",
        *titles,
        "autoencoder, moving dB",
        "compared with",
        "moving dB, difference",
        "of each seed",
    ]
    lines = [header, ["---"] * len(header)]
    for evaluated in list(found.values())[:1]:
        still = estimates(evaluated, STATIC)
        values = (still[metric].text(digits) for metric, (_, digits) in COLUMNS.items())
        lines.append(["static frame", *values, *["-"] * 4])
    for row in rows:
        if row.name in found:
            values = (
                estimates(found[row.name])[metric].text(digits) for metric, (_, digits) in COLUMNS.items()
            )
            ceiling = estimates(found[row.name], CEILING)[DIFFERENCE].text(2)
            lines.append([row.title or row.name, *values, ceiling, *_compared(row, rows[0].name, found)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _compared(row: AblationRow, first: str, found: Mapping[str, Evaluated]) -> list[str]:
    other = row.against or ("" if row.model else first)
    if other in ("", row.name) or other not in found:
        return ["-"] * 3
    over_episodes, each = difference(found[row.name], found[other])
    return [other, over_episodes.text(2), ", ".join(f"{value:+.2f}" for value in each)]


def run(config: AblationConfig, only: Sequence[str] | None = None) -> int:
    """Run all cells; the tables are rewritten after every evaluation."""
    change_models(config)
    cells = [cell for cell in plan(config) if not only or cell.name.split("/")[0] in only]
    return work_through(cells, Path(config.output) / "logs", partial(write_results, config))


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = study_parser(AblationConfig, __doc__)
    parser.add_argument("--only", nargs="+", metavar="ROW", help="work on these rows alone")
    arguments = parser.parse_intermixed_args(argv)
    try:
        config = load_config(AblationConfig, arguments.config, arguments.overrides)
        check_settings(plan(config))
        interrupt_on_signals()
        return run(config, arguments.only)
    except KeyboardInterrupt:
        return STOPPED
