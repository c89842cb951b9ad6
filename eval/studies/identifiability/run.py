"""Collect the cells of the identifiability study, bound their scores, and write the tables and figures.

python eval/identifiability.py collect outputs/identifiability    finished cells -> docs/results
python eval/identifiability.py oracles                            floors and ceilings of all collected data
python eval/identifiability.py controls outputs/identifiability/*_smooth_*     rotations, mechanism diversity
python eval/identifiability.py report                             tables.md and figures, beside the cells
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from studies.identifiability.controls import learned_diversity, oracles, rotation_control, true_diversity
from studies.identifiability.report import write_report
from worldmodel.config import load_config
from worldmodel.data.identifiability import IdentifiabilityDataConfig
from worldmodel.files import write_text
from worldmodel.training.identifiability import CellConfig, restore_stacks, rounded
from worldmodel.training.loop.checkpoints import CheckpointStore
from worldmodel.training.runs.seed_stack import SeedStack

RESULTS = Path("docs/results/identifiability")


def collect(runs: Path, results: Path) -> None:
    """Copy what is finished, without the loss curves of every epoch."""
    for path in sorted(runs.glob("*/result.json")):
        result = json.loads(path.read_text())
        result["final_losses"] = result.pop("losses")[-1]
        _write(results / "cells" / f"{result['cell']}.json", result)
        print(result["cell"])


def write_oracles(results: Path, num_seeds: int) -> None:
    """One file per data process of the collected cells; those that exist are kept."""
    for path in sorted((results / "cells").glob("*.json")):
        data = IdentifiabilityDataConfig(**json.loads(path.read_text())["identity"]["data"])
        target = results / "oracles" / f"{data_name(data)}.json"
        if target.exists():
            _check_data(target, data)
        else:
            _write(target, {"data": asdict(data)} | oracles(data, range(num_seeds)))
            print(target.stem)


def data_name(data: IdentifiabilityDataConfig) -> str:
    """Names a data process among files: mixing, d_z, |U|, and the form of h where it is not the usual."""
    smooth = "" if data.activation == "leaky_relu" else f"_{data.activation}"
    gain = "" if data.gain == 1 else f"_gain{data.gain:g}"
    return f"{data.mixing}_d{data.latent_dim}_u{data.num_conditions}{smooth}{gain}"


def _check_data(path: Path, data: IdentifiabilityDataConfig) -> None:
    found = json.loads(path.read_text())["data"]
    changed = [name for name, value in asdict(data).items() if found.get(name) != value]
    if changed:
        raise ValueError(
            f"{path} bounds other data: {', '.join(changed)} differ from a collected cell's; remove one"
        )


def write_controls(run: Path, results: Path, num_diverse: int) -> None:
    """Load a cell's weights and put its controls beside the results."""
    config = load_config(CellConfig, str(run / "config.yaml"))
    checkpoint = CheckpointStore(run / "checkpoints", num_kept=1).last_good()
    if checkpoint is None:
        raise ValueError(f"{run} has no checkpoint")
    seeds = range(config.first_seed, config.first_seed + config.num_seeds)
    stack = SeedStack(config.data, config.model, config.mcl, config.optimisation, seeds)
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
    _write(results / "controls" / f"{config.cell}.json", found)


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


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(finite(rounded(content)), allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not know: infinite ones and those of diverged seeds."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list) else value


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("collect", "oracles", "controls", "report"))
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
    else:
        write_report(arguments.results)
    return 0
