"""Collect the cells of the identifiability study, bound their scores, and write the tables and figures.

python eval/study.py identifiability collect outputs/identifiability   finished cells -> docs/results
python eval/study.py identifiability oracles                           floors and ceilings of the data
python eval/study.py identifiability controls outputs/identifiability/*_smooth_*   rotations, diversity
python eval/study.py identifiability choose --results .../decoder_width    a study file at the chosen widths
python eval/study.py identifiability widths --results .../decoder_width    tables of that study
python eval/study.py identifiability gains --results .../needs_generator   what arms gain over none, paired
python eval/study.py identifiability report                            tables.md and figures
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from studies.cells_file import finite, open_cells, read_cells
from studies.identifiability.cells import load_cells
from studies.identifiability.controls import learned_diversity, oracles, rotation_control, true_diversity
from studies.identifiability.gains import write_gains
from studies.identifiability.report import write_report
from studies.identifiability.widths import write_choice, write_tables
from worldmodel.cli_errors import one_way_out
from worldmodel.config import load_config
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig
from worldmodel.md_vae.stacked import SeedStack
from worldmodel.md_vae.train import CellConfig, restore_stacks, rounded
from worldmodel.training.loop.checkpoints import CheckpointStore

STUDY = "identifiability"
RESULTS = Path("docs/results") / STUDY
COMMANDS = ("collect", "oracles", "controls", "choose", "widths", "gains", "report")
CHOICE = Path("configs/identifiability/chosen_width.yaml")


def collect(runs: Path, results: Path) -> None:
    """Copy what is finished, without the loss curves of every epoch."""
    cells = open_cells(results, STUDY)
    for path in sorted(runs.glob("*/result.json")):
        result = json.loads(path.read_text())
        result["final_losses"] = result.pop("losses")[-1]
        cells.add(f"cells/{result['cell']}", plain(result))
        print(result["cell"])


def write_oracles(results: Path, num_seeds: int) -> None:
    """One line per data process of the collected cells; those that exist are kept."""
    cells = open_cells(results, STUDY)
    for cell in read_cells(results, "cells").values():
        data = IdentifiabilityDataConfig(**cell["identity"]["data"])
        name = data_name(data)
        if f"oracles/{name}" in cells:
            _check_data(name, cells.records[f"oracles/{name}"]["data"], data)
        else:
            cells.add(f"oracles/{name}", plain({"data": asdict(data)} | oracles(data, range(num_seeds))))
            print(name)


def data_name(data: IdentifiabilityDataConfig) -> str:
    """Names a data process among files: mixing, d_z, |U|, and the form of h where it is not the usual."""
    smooth = "" if data.activation == "leaky_relu" else f"_{data.activation}"
    gain = "" if data.gain == 1 else f"_gain{data.gain:g}"
    return f"{data.mixing}_d{data.latent_dim}_u{data.num_conditions}{smooth}{gain}"


def _check_data(name: str, found: dict[str, Any], data: IdentifiabilityDataConfig) -> None:
    changed = [name for name, value in asdict(data).items() if found.get(name) != value]
    if changed:
        raise ValueError(
            f"oracles/{name} bounds other data: {', '.join(changed)} differ from a collected cell's; "
            "remove one of the two lines"
        )


def write_controls(run: Path, results: Path, num_diverse: int) -> None:
    """Load a cell's weights and put its controls beside the results."""
    config = load_config(CellConfig, str(run / "config.yaml"))
    checkpoint = CheckpointStore(run / "checkpoints", num_kept=1).last_good()
    if checkpoint is None:
        raise ValueError(f"{run} has no checkpoint")
    seeds = range(config.first_seed, config.first_seed + config.num_seeds)
    stack = SeedStack(config.data, config.model, config.mcl, config.optimization, seeds)
    restore_stacks(checkpoint, [stack])
    found: dict[str, Any] = {"cell": config.cell, "epoch": checkpoint.state["epoch"]}
    if config.model.family in ("concat", "modulated", "hypernetwork"):
        found["rotation"] = asdict(rotation_control(stack))
    found["diversity"] = [
        {
            "seed": seeds[index],
            "learned": summary(learned_diversity(stack, index)),
            "true": summary(true_diversity(stack, index)),
        }
        for index in range(min(num_diverse, len(seeds)))
    ]
    open_cells(results, STUDY).add(f"controls/{config.cell}", plain(found))


def summary(diversity: Any) -> dict[str, Any]:
    """What the tables show of a diversity measurement."""
    return {
        "rank": int(diversity.rank.median()),
        "needed": 2 * diversity.latent_dim,
        "effective_rank": float(diversity.effective_rank.median()),
        "condition_number": float(diversity.condition_number.median()),
        "largest_contrast": diversity.largest_contrast,
        "verdict": diversity.verdict(),
    }


def plain(content: dict[str, Any]) -> dict[str, Any]:
    """Rounded to six digits, and without what JSON does not know."""
    answer: dict[str, Any] = finite(rounded(content))
    return answer


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("runs", nargs="*", type=Path, help="folder of the study; of cells for controls")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=30, help="oracles: seeds 0 to this")
    parser.add_argument(
        "--diverse",
        type=int,
        default=3,
        help="controls: seeds to measure diversity on (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    if arguments.command in ("collect", "controls") and not arguments.runs:
        parser.error(f"{arguments.command} needs a folder")
    if arguments.command == "collect":
        for runs in arguments.runs:
            collect(runs, arguments.results)
    elif arguments.command == "oracles":
        write_oracles(arguments.results, arguments.seeds)
    elif arguments.command == "controls":
        for run in arguments.runs:
            write_controls(run, arguments.results, arguments.diverse)
    elif arguments.command == "choose":
        write_choice(load_cells(arguments.results), CHOICE)
    elif arguments.command == "widths":
        write_tables(load_cells(arguments.results), arguments.results / "tables.md")
    elif arguments.command == "gains":
        write_gains(load_cells(arguments.results), arguments.results)
    else:
        write_report(arguments.results)
    return 0
