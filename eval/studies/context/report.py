"""Tables and pictures of the context study, from cells.jsonl and the models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.cells_file import read_cells
from studies.context.cells import Cell, ContextStudyConfig, folder, plan, test_pictures, training_config
from worldmodel.context_module.data.types import Do, context_name, training_contexts
from worldmodel.context_module.models.context_model import ContextModel
from worldmodel.files import write_text
from worldmodel.mddiff.evaluation.pictures import draw_rows
from worldmodel.report.intervals import NOTHING, mean_estimate, ratio_estimate
from worldmodel.types import to_unit_range

COLUMNS = {
    "concept": "concept",
    "composition": "composition",
    "elbo": "ELBO",
    "elbo_held_out": "ELBO, pairs",
    "mcc": "MCC",
    "mcc_matched": "MCC matched",
}
# Concept, composition and reconstruction as published (arXiv 2507.04754): 64x64 pictures of their own, GPU.
PUBLISHED = {
    "quad": {
        "base": (".175", ".288", ".444"),
        "base_pooled": (".166", ".248", ".446"),
        "pooled": (".202", ".306", ".840"),
        "end_to_end": (".063", ".081", ".519"),
        "fine_tuned": (".059", ".086", ".518"),
        "frozen": (".086", ".132", ".559"),
    },
    "quad_causal": {
        "base": (".170", ".222", ".767"),
        "end_to_end": (".116", ".127", ".828"),
        "fine_tuned": (".112", ".121", ".840"),
    },
}
PICTURE_ROW, NUM_REAL, NUM_MADE = "end_to_end", 5, 8
NUM_PAIRS = 5  # held-out contexts in the picture grid


def write_report(study: ContextStudyConfig) -> list[Path]:
    """Write RESULTS/tables.md, and a grid of pictures for each dataset with a trained model."""
    results = Path(study.results)
    records = read_cells(results)
    parts = [table(study, records, dataset) for dataset in study.datasets]
    parts.append(_cost(study, records))
    written = [results / "tables.md"]
    write_text(written[0], "\n\n".join(parts) + "\n")
    for cell in plan(study):
        is_shown = cell.row.name == PICTURE_ROW and cell.seed == study.seeds[0]
        if is_shown and (folder(study, cell) / "model").exists():
            written.append(results / f"{cell.dataset}.png")
            draw_rows(written[-1], picture_rows(study, cell))
    return written


def table(study: ContextStudyConfig, records: Mapping[str, Mapping[str, Any]], dataset: str) -> str:
    """Rows with t intervals over seeds, and the published results."""
    header = ["row", *COLUMNS.values(), "composition / base", "published", "seeds"]
    lines = [f"### {dataset}", "", _line(header), _line(["---"] * len(header))]
    real = records.get(f"{dataset}/real", {})
    for name, title in (("floor", "real pictures"), ("unmoved", "real, observational")):
        values = [_number(real.get(f"{column}_{name}")) for column in ("concept", "composition")]
        lines.append(_line([title, *values, *["-"] * (len(header) - 3)]))
    base = seed_values(study, records, dataset, "base", "composition")
    for row in study.rows:
        found = {name: seed_values(study, records, dataset, row.name, name) for name in COLUMNS}
        estimates = [mean_estimate(list(values.values())).text(3) for values in found.values()]
        shared = sorted(base.keys() & found["composition"].keys())
        ratio = (
            ratio_estimate([found["composition"][seed] for seed in shared], [base[seed] for seed in shared])
            if shared
            else NOTHING
        )
        published = " / ".join(PUBLISHED.get(dataset, {}).get(row.name, ())) or "-"
        lines.append(_line([row.name, *estimates, ratio.text(2), published, str(len(found["concept"]))]))
    return "\n".join(lines)


def seed_values(
    study: ContextStudyConfig, records: Mapping[str, Mapping[str, Any]], dataset: str, row: str, name: str
) -> dict[int, float]:
    """Seed -> number, for seeds that have one."""
    found = {seed: records.get(f"{dataset}/{row}/seed{seed}", {}).get(name) for seed in study.seeds}
    return {seed: float(value) for seed, value in found.items() if value is not None}


def _cost(study: ContextStudyConfig, records: Mapping[str, Mapping[str, Any]]) -> str:
    """CPU time, and whether the directions of concepts are independent."""
    header = ["row", "parameters trained", "training, CPU s", "smallest angle, degrees", "independent"]
    lines = ["### Cost and premises", "", _line(header), _line(["---"] * len(header))]
    for row in study.rows:
        mine = [records[cell.key] for cell in plan(study) if cell.row == row and cell.key in records]
        seconds = [record["training_cpu_s"] for record in mine if record.get("training_cpu_s")]
        angles = [record["directions"] for record in mine if record.get("directions")]
        smallest = f"{min(entry['smallest_angle'] for entry in angles):.1f}" if angles else "-"
        independent = (
            f"{sum(entry['is_independent'] for entry in angles)} of {len(angles)}" if angles else "-"
        )
        parameters = f"{mine[0]['parameters']:,}" if mine and mine[0].get("parameters") else "-"
        lines.append(_line([row.name, parameters, mean_estimate(seconds).text(0), smallest, independent]))
    return "\n".join(lines)


def picture_rows(study: ContextStudyConfig, cell: Cell) -> dict[str, Tensor]:
    """Context -> real pictures, a gap, and generated ones from the same latents in every row."""
    config = training_config(study, cell)
    model = ContextModel.from_pretrained(folder(study, cell) / "model")
    data = test_pictures(config.data)
    z = torch.randn(NUM_MADE, model.latent_dim, generator=torch.Generator().manual_seed(0))
    step = max(1, len(data.held_out) // NUM_PAIRS)
    chosen: Sequence[Do] = (*training_contexts(len(data.concept_names)), *data.held_out[1::step][:NUM_PAIRS])
    rows = {}
    for do in chosen:
        real = to_unit_range(data.images(do, np.arange(NUM_REAL)))
        gap = torch.ones_like(real[:1])
        rows[context_name(do, data.concept_names)] = torch.cat([real, gap, model.pictures(z, do).cpu()])
    return rows


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
