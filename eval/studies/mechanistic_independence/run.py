"""Mechanistic independence: recovery against overlap, the gap each criterion uses, and component counts.

python eval/study.py mechanistic_independence tune    weights of all criteria, on seeds of their own
python eval/study.py mechanistic_independence run     all cells; the same command goes on where it stopped
python eval/study.py mechanistic_independence gaps    criteria at the true generators
python eval/study.py mechanistic_independence report  tables.md and figures
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.cells_file import finite, open_cells, read_cells
from studies.mechanistic_independence.figures import write_report
from studies.mechanistic_independence.training import (
    BLOCKS,
    DIM,
    CellConfig,
    Objective,
    RingGenerator,
    train_cell,
)
from worldmodel.cli_errors import one_way_out
from worldmodel.diagnostics import compositional_contrast, irreducible_components, support_graph, type_h
from worldmodel.diagnostics.mechanisms.jacobians import jacobian_blocks
from worldmodel.diagnostics.mechanisms.mechanistic import type_m
from worldmodel.diagnostics.mechanisms.sparse_volume import sparse_volume_loss
from worldmodel.md_vae.train import rounded

STUDY = "mechanistic_independence"
RESULTS = Path("docs/results") / STUDY
OVERLAPS = (0.0, 0.05, 0.2, 0.5)
OBJECTIVES: tuple[Objective, ...] = ("contrast", "contrast_normalized", "sparse_coordinates", "hessian")
# Ablations at high overlap, with the weight of the criterion that they vary.
ABLATIONS: tuple[tuple[Objective, Objective], ...] = (
    ("contrast_coordinates", "contrast"),
    ("sparse_volume", "sparse_coordinates"),
)
TUNED_WEIGHTS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # the same for every criterion
KNOWS_BLOCKS: tuple[Objective, ...] = ("contrast", "contrast_normalized", "hessian")
LONG = CellConfig(steps=4500, trace_every=750)
TUNING = CellConfig(overlap=0.5, first_seed=100, num_seeds=3)  # seeds that no other cell uses


def score_name(objective: str) -> str:
    """The recovery score of a criterion; criteria on coordinates get their blocks from the support graph."""
    return "regrouped_recovery" if objective.endswith("coordinates") else "recovery"


def tuning_cells() -> list[CellConfig]:
    return [
        replace(TUNING, objective=objective, weight=weight)
        for weight in TUNED_WEIGHTS
        for objective in OBJECTIVES
    ]


def chosen_weights(results: Path) -> dict[str, float]:
    """The weight with the best mean recovery on the tuning seeds, for every criterion."""
    means: dict[str, dict[float, float]] = {}
    cells = read_cells(results, "cells")
    for config in tuning_cells():
        if config.name not in cells:
            raise ValueError(f"{results} has no cell {config.name}: run the command `tune` first")
        last = cells[config.name]["trace"][-1]
        found = float(np.mean(np.array(last[score_name(config.objective)], float)))
        means.setdefault(config.objective, {})[config.weight] = found
    return {objective: max(scores, key=scores.__getitem__) for objective, scores in means.items()}


def study_cells(weights: dict[str, float]) -> list[CellConfig]:
    """All cells, those with high overlap first because they matter most."""
    chosen: list[tuple[Objective, float]] = [(objective, weights[objective]) for objective in OBJECTIVES]
    cells = [
        CellConfig(overlap=overlap, objective=objective, weight=weight)
        for overlap in reversed(OVERLAPS)
        for objective, weight in [*chosen, ("none", 0.0)]
    ]
    highest = CellConfig(overlap=OVERLAPS[-1])
    cells += [
        replace(highest, interaction="mixed", objective=objective, weight=weight)
        for objective, weight in chosen
    ]
    cells += [
        replace(highest, objective=objective, weight=weights[sibling]) for objective, sibling in ABLATIONS
    ]
    # Were the failures slow, or wrong? Criteria with given blocks, with five times the steps.
    return cells + [
        replace(LONG, overlap=overlap, objective=objective, weight=weights[objective])
        for overlap in (OVERLAPS[0], OVERLAPS[-1])
        for objective in KNOWS_BLOCKS
    ]


def run_cells(cells: list[CellConfig], results: Path, part: str) -> None:
    """Train cells without a result.

    `part` i/n selects every n-th cell, so that n processes share the work.
    """
    index, count = (int(number) for number in part.split("/"))
    done = open_cells(results, STUDY)
    for config in cells[index::count]:
        if f"cells/{config.name}" not in done:
            result = train_cell(config)
            done.add(f"cells/{config.name}", plain(result))
            last = np.mean(result["trace"][-1][score_name(config.objective)])
            print(f"{config.name}: recovery {last:.3f}, {result['cpu_seconds']} s", flush=True)


def true_gaps(config: CellConfig, num_points: int = 64) -> dict[str, Any]:
    """Each criterion at the true generator and after mixing its latents, one value per seed.

    A criterion can identify factors only if the true basis scores better than mixed ones.
    """
    generator = RingGenerator(config)
    rng = torch.Generator().manual_seed(7)
    z = torch.rand(num_points, DIM, generator=rng, dtype=torch.float64) * 2 - 1
    rows: dict[str, list[float]] = {}
    for index in range(config.num_seeds):
        one = generator.of_seed(index)
        turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=rng, dtype=torch.float64))[0]
        for label, basis in (("true", torch.eye(DIM, dtype=torch.float64)), ("mixed", turn)):
            found = measures(jacobian_blocks(one, z).jacobian @ basis)
            turned = replace(one, inner=basis.T @ one.inner.double())
            found["hessian_across"] = type_h(turned, z[:16] @ basis, BLOCKS).score
            for name, value in found.items():
                rows.setdefault(f"{label}_{name}", []).append(value)
    return {"interaction": config.interaction, "overlap": config.overlap, "num_points": num_points, **rows}


def measures(jacobian: torch.Tensor) -> dict[str, float]:
    """First-order criteria of one Jacobian sample in the given basis."""
    return {
        "contrast": compositional_contrast(jacobian, blocks=BLOCKS).normalized,
        "private_share": type_m(jacobian, blocks=BLOCKS).score,
        "sparse_volume": sparse_volume_loss(jacobian, BLOCKS).item(),
        "sparse_coordinates": sparse_volume_loss(jacobian, [(i,) for i in range(DIM)]).item(),
        "nonzeros": float((jacobian.abs() > 1e-9).sum((1, 2)).double().mean()),
        "components": float(support_graph(jacobian, threshold=1e-9).num_components),
        "components_any_basis": float(irreducible_components(jacobian).num_components),
    }


def write_gaps(results: Path) -> None:
    """Recompute the criteria at the generators of every overlap."""
    cells = [CellConfig(overlap=overlap) for overlap in OVERLAPS]
    cells += [CellConfig(overlap=overlap, interaction="mixed") for overlap in OVERLAPS[1:]]
    kept = open_cells(results, STUDY)
    for cell in cells:
        kept.add(f"gaps/{cell.generator_name}", plain(true_gaps(cell)))


def plain(content: dict[str, Any]) -> dict[str, Any]:
    """Round to five digits and replace numbers that JSON lacks."""
    answer: dict[str, Any] = finite(rounded(content, 5))
    return answer


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("tune", "run", "gaps", "report"))
    parser.add_argument("--part", default="0/1", help="i/n: every n-th cell from the i-th on")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    if arguments.command == "tune":
        run_cells(tuning_cells(), arguments.results, arguments.part)
    elif arguments.command == "run":
        run_cells(study_cells(chosen_weights(arguments.results)), arguments.results, arguments.part)
    elif arguments.command == "gaps":
        write_gaps(arguments.results)
    else:
        write_report(arguments.results, study_cells(chosen_weights(arguments.results)), score_name)
    return 0
