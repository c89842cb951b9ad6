"""Tables of the identifiability study from its collected cells."""

from pathlib import Path
from typing import Any

import numpy as np

from studies.cells_file import read_cells
from studies.identifiability.cells import (
    COLUMNS,
    CONDITIONS,
    DIMS,
    MIXINGS,
    PAPER_BASELINES,
    PAPER_TABLE,
    PAPER_TEXT,
    SOURCE,
    Cell,
    best_of_restarts,
    find,
    load_cells,
)
from studies.identifiability.figures import sweep_curves, violins
from worldmodel.report.page import Page, Section, Table, write_page

# Scores without a model: title and name in the files of oracles.
BOUNDS = {
    "ceiling": "ceiling",
    "w as z": "modulated",
    "rotated": "rotated",
    "rotated per u": "rotated_by_condition",
}
# Latents that a cell may offer beside the model's own; `modulated` is scored against the true w.
LATENTS = ("", "standardized_", "modulated_", "aligned_")
# Cells of configs/identifiability/mcl_ablation.yaml.
ABLATION, ABLATION_BASE = "smooth_", "smooth_none"


def spread(values: np.ndarray) -> str:
    """Median, quartiles."""
    low, middle, high = np.nanpercentile(values, (25, 50, 75))
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def main_table(cells: list[Cell], oracles: dict[str, Any], num_conditions: int = 8) -> Table:
    """MCC of all models beside floors and ceilings, one row per mixing and d_z."""
    titles = [title for title, _, _ in COLUMNS]
    header = ["h", "d_z", *titles, *BOUNDS, "paper MD-VAE", *(f"paper {name}" for name in PAPER_BASELINES)]
    lines = [header]
    for mixing in MIXINGS:
        for dim in DIMS:
            entries = []
            for _, name, score in COLUMNS:
                cell = find(cells, name, mixing, dim, num_conditions)
                entries.append(spread(cell.values(score)) if cell else "not run")
            bounds = oracles.get(f"{mixing}_d{dim}_u{num_conditions}", {})
            entries += [_bound(bounds, name) for name in BOUNDS.values()]
            paper = [
                f"{PAPER_TEXT[dim]} / {PAPER_TABLE[dim][2]}",
                *(one[dim] for one in PAPER_BASELINES.values()),
            ]
            lines.append([mixing, str(dim), *entries, *paper])
    return _table(lines)


def _bound(bounds: dict[str, list[float]], name: str) -> str:
    return f"{np.nanmedian(np.asarray(bounds[name], dtype=float)):.3f}" if name in bounds else ""


def ordering_table(cells: list[Cell]) -> Table:
    """On how many seeds one model beats another, on the same data."""
    pairs = ((2, 1), (3, 1), (4, 2), (4, 3), (1, 0), (2, 0))
    lines = [["h", "d_z", "|U|", *(f"{COLUMNS[a][0]} > {COLUMNS[b][0]}" for a, b in pairs)]]
    for mixing, dim, num in ((m, d, k) for m in MIXINGS for d in DIMS for k in CONDITIONS):
        entries = []
        for pair in pairs:
            sides = [(find(cells, COLUMNS[i][1], mixing, dim, num), COLUMNS[i][2]) for i in pair]
            values = [cell.values(score) for cell, score in sides if cell is not None]
            entries.append(
                f"{int((values[0] > values[1]).sum())} of {len(values[0])}" if len(values) == 2 else ""
            )
        if any(entries):
            lines.append([mixing, str(dim), str(num), *entries])
    return _table(lines)


def sweep_table(cells: list[Cell], oracles: dict[str, Any]) -> Table:
    """Median MCC over |U| beside what is published and what bounds it."""
    lines = [["h", "d_z", "model", *(f"|U| = {num}" for num in CONDITIONS)]]
    for dim in DIMS:
        lines.append(["paper", str(dim), "MD-VAE", *(f"{value:.2f}" for value in PAPER_TABLE[dim])])
        for title, values in PAPER_BASELINES.items():
            lines.append(["paper", str(dim), title, *("" if n != 8 else values[dim] for n in CONDITIONS)])
        for mixing in MIXINGS:
            for title, name, score in COLUMNS:
                row = [find(cells, name, mixing, dim, num) for num in CONDITIONS]
                if any(row):
                    medians = [f"{np.median(cell.values(score)):.3f}" if cell else "" for cell in row]
                    lines.append([mixing, str(dim), title, *medians])
            found = [oracles.get(f"{mixing}_d{dim}_u{num}", {}) for num in CONDITIONS]
            for title, name in BOUNDS.items():
                if any(found):
                    lines.append([mixing, str(dim), title, *(_bound(one, name) for one in found)])
    return _table(lines)


def epochs_table(cells: list[Cell]) -> Table:
    """Median MCC as training goes on; after the last epoch all other scores and the parts of the bound."""
    epochs = sorted({epoch for cell in cells for epoch in cell.scores}, key=int)
    others = {"Spearman": "mcc_spearman", "held out": "mcc_held_out", "by u": "mcc_by_condition"}
    others |= {"R2": "r2", "R2 by u": "r2_by_condition"}
    bound = {"-log p(x given z)": "reconstruction", "KL": "kl", "ELBO": "elbo"}
    header = ["cell", "latent", *(f"MCC at {epoch}" for epoch in epochs), *others, *bound]
    lines = [header]
    for cell in cells:
        for prefix in (prefix for prefix in LATENTS if f"{prefix}mcc" in cell.last):
            over_time = [
                f"{np.median(cell.values(prefix + 'mcc', e)):.3f}" if e in cell.scores else "" for e in epochs
            ]
            last = [*(prefix + name for name in others.values()), *bound.values()]
            medians = [f"{np.median(cell.values(name)):.3f}" for name in last]
            lines.append([cell.content["cell"], prefix.rstrip("_") or "own", *over_time, *medians])
    return _table(lines)


def control_tables(controls: list[dict[str, Any]]) -> tuple[Table, Table]:
    """Rotation control and mechanism diversity of the cells that have them."""
    names = (
        "elbo",
        "elbo_rotated",
        "elbo_rotated_by_condition",
        "elbo_rotated_mean_field",
        "mcc",
        "mcc_rotated",
        "mcc_rotated_by_condition",
    )
    rotations = [["cell", *names]]
    for entry in controls:
        if "rotation" in entry:
            rotations.append([entry["cell"], *(_bound(entry["rotation"], name) for name in names)])
    fields = ("rank", "needed", "effective_rank", "condition_number", "largest_contrast")
    lines = [["cell", "generator", *fields]]
    for entry in controls:
        for kind in ("true", "learned"):
            found = [one[kind] for one in entry["diversity"]]
            lines.append([entry["cell"], kind, *(_median(found, name) for name in fields)])
    return _table(rotations), _table(lines)


def _table(lines: list[list[str]]) -> Table:
    """The first line is the header."""
    header, *rows = map(tuple, lines)
    return Table(header, tuple(rows))


def _median(found: list[dict[str, Any]], name: str) -> str:
    """Over the measured seeds; JSON has no infinity, the files hold null for it."""
    values = [np.inf if one[name] is None else one[name] for one in found]
    return f"{np.median(values):.3g}" if values else ""


def ablation_table(cells: list[Cell], controls: list[dict[str, Any]], oracles: dict[str, Any]) -> Table:
    """What MCL did to scores, bound and mechanism diversity, beside the same model without it."""
    titles = ["model", "MCL mode", "weight", "MCC", "seeds ahead of no MCL", "MCC by u", "ELBO"]
    titles += ["MCL accuracy", "GMD rank", "effective rank", "condition number"]
    lines = [titles]
    base = next((cell for cell in cells if cell.name == ABLATION_BASE), None)
    if base is None:
        return _table(lines)
    diversity = {entry["cell"]: entry["diversity"] for entry in controls}
    for cell in (cell for cell in cells if cell.name.startswith(ABLATION)):
        identity = cell.content["identity"]
        model, weight = identity["model"], identity["optimization"]["mcl_weight"]
        ahead = f"{int((cell.values('mcc') > base.values('mcc')).sum())} of {len(base.values('mcc'))}"
        accuracy = cell.content["final_losses"].get("mcl_accuracy")
        entries = [
            model["family"] + (", full posterior" if model["posterior"] == "full" else ""),
            *((identity["mcl"]["mode"], f"{weight:g}") if weight else ("none", "")),
            spread(cell.values("mcc")),
            "" if cell is base else ahead,
            *(f"{np.median(cell.values(name)):.3f}" for name in ("mcc_by_condition", "elbo")),
            "" if accuracy is None else f"{accuracy:.2f}",
        ]
        measured = [one["learned"] for one in diversity.get(cell.content["cell"], [])]
        entries += [_median(measured, name) for name in ("rank", "effective_rank", "condition_number")]
        lines.append(entries)
    data = base.content["identity"]["data"]
    bounds: dict[str, Any] = next((found for found in oracles.values() if found["data"] == data), {})
    lines += [[title, "", "", _bound(bounds, name), *[""] * 7] for title, name in BOUNDS.items()]
    true = [one["true"] for one in diversity.get(base.content["cell"], [])]
    ranks = [_median(true, name) for name in ("rank", "effective_rank", "condition_number")]
    return _table([*lines, ["true generator", *[""] * 7, *ranks]])


def write_report(results: Path) -> None:
    """tables.md and the figures from whatever has been collected."""
    cells = load_cells(results)
    cells += best_of_restarts(cells)
    oracles = read_cells(results, "oracles")
    controls = [entry for _, entry in sorted(read_cells(results, "controls").items())]
    sections: dict[str, tuple[Table, ...]] = {
        "MCC at |U| = 8, median [quartiles] over seeds": (main_table(cells, oracles),),
        "Median MCC over |U|": (sweep_table(cells, oracles),),
        "On how many seeds one model is ahead of another": (ordering_table(cells),),
        "MCL modes and weights": (ablation_table(cells, controls, oracles),),
        "Over training": (epochs_table(cells),),
        "Rotation control and mechanism diversity": control_tables(controls),
    }
    lead = (
        "Written by python eval/study.py identifiability report. Do not edit. "
        f"'paper' marks numbers published in '{SOURCE}'."
    )
    page = Page("Identifiability study: tables", lead, tuple(Section(*item) for item in sections.items()))
    write_page(page, results / "tables.md")
    violins(cells, results / "mcc.png")
    sweep_curves(cells, oracles, results / "sweep.png")
