"""Tables and figures of the identifiability study from its collected JSON files."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MIXINGS, DIMS, CONDITIONS = ("orthogonal", "generic"), (5, 10, 20), (2, 4, 8, 16, 32)
# What the paper reports: section 5.1 at |U| = 8, and Table 5.
PAPER_TEXT = {5: 0.96, 10: 0.87, 20: 0.81}
PAPER_TABLE = {
    5: (0.51, 0.79, 0.96, 0.97, 0.97),
    10: (0.43, 0.62, 0.84, 0.93, 0.94),
    20: (0.39, 0.51, 0.71, 0.86, 0.92),
}
# The text gives the ends of a range over d_z, at |U| = 8.
PAPER_BASELINES = {
    "iVAE": {5: "0.80", 10: "0.65 to 0.80", 20: "0.65"},
    "beta-VAE": {5: "0.53", 10: "0.39 to 0.53", 20: "0.39"},
}
# Scores without a model: title and name in the files of oracles.
BOUNDS = {
    "ceiling": "ceiling",
    "w as z": "modulated",
    "rotated": "rotated",
    "rotated per u": "rotated_by_condition",
}
# Latents that a cell may offer beside the model's own; `modulated` is scored against the true w.
LATENTS = ("", "standardised_", "modulated_", "aligned_")
# Columns: title, cell name, score. The iVAE standardised by its prior is the tied MD-VAE, number for number.
COLUMNS = (
    ("beta-VAE", "beta_vae", "mcc"),
    ("iVAE as is", "ivae", "mcc"),
    ("MD-VAE concat", "concat", "mcc"),
    ("MD-VAE modulated", "modulated", "mcc"),
    ("MD-VAE tied = iVAE standardised", "ivae", "standardised_mcc"),
    ("MD-VAE tied, full posterior", "tied_full", "mcc"),
    ("the same, aligned", "tied_full", "aligned_mcc"),
    ("the same, best of 3 starts by ELBO", "tied_full_restarts", "aligned_mcc"),
    ("beta-VAE aligned", "beta_vae", "aligned_mcc"),
    ("MD-VAE tied, aligned", "ivae", "aligned_mcc"),
    ("MD-VAE modulated, aligned", "modulated", "aligned_mcc"),
)
# Cells of configs/simulation/mcl_ablation.txt.
ABLATION, ABLATION_BASE = "smooth_", "smooth_none"
RESTARTS = "tied_full", ("tied_full_r1", "tied_full_r2")  # cells that differ in their initial weights only


@dataclass(frozen=True)
class Cell:
    """One trained cell: a model on a data process."""

    name: str
    mixing: str
    latent_dim: int
    num_conditions: int
    scores: dict[str, dict[str, list[float]]]  # epoch -> score -> one value per seed
    content: dict[str, Any]

    @property
    def last(self) -> dict[str, list[float]]:
        """Scores after the last epoch."""
        return self.scores[max(self.scores, key=int)]

    def values(self, score: str, epoch: str | None = None) -> np.ndarray:
        """One value per seed, nan where it diverged; after the last epoch unless told otherwise."""
        return np.asarray((self.scores[epoch] if epoch else self.last)[score], dtype=float)


def load_cells(results: Path) -> list[Cell]:
    """All collected cells."""
    cells = []
    for path in sorted((results / "cells").glob("*.json")):
        content = json.loads(path.read_text())
        data = content["identity"]["data"]
        key = (content["identity"]["name"], data["mixing"], data["latent_dim"], data["num_conditions"])
        cells.append(Cell(*key, content["scores"], content))
    return cells


def best_of_restarts(cells: list[Cell]) -> list[Cell]:
    """For every data process with all its restarts: per seed the start with the highest held-out ELBO."""
    base, others = RESTARTS
    best = []
    for cell in (cell for cell in cells if cell.name == base):
        key = (cell.mixing, cell.latent_dim, cell.num_conditions)
        starts = [cell, *(other for name in others if (other := find(cells, name, *key)))]
        if len(starts) == 1 + len(others):
            # A start that diverged has no bound: it must not win over those that have one.
            bounds = [np.nan_to_num(start.values("elbo"), nan=-np.inf) for start in starts]
            chosen = np.argmax(bounds, axis=0)
            last = {
                score: [float(starts[start].values(score)[seed]) for seed, start in enumerate(chosen)]
                for score in cell.last
            }
            content = {"cell": f"{cell.content['cell']}_restarts"}
            best.append(Cell(f"{base}_restarts", *key, {max(cell.scores, key=int): last}, content))
    return best


def find(cells: Iterable[Cell], name: str, mixing: str, latent_dim: int, num_conditions: int) -> Cell | None:
    """The cell with these settings, if it was collected."""
    key = (name, mixing, latent_dim, num_conditions)
    found = [cell for cell in cells if (cell.name, cell.mixing, cell.latent_dim, cell.num_conditions) == key]
    return found[0] if found else None


def spread(values: np.ndarray) -> str:
    """Median, quartiles."""
    low, middle, high = np.nanpercentile(values, (25, 50, 75))
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def main_table(cells: list[Cell], oracles: dict[str, Any], num_conditions: int = 8) -> list[str]:
    """MCC of all models beside floors and ceilings, one row per mixing and d_z."""
    titles = [title for title, _, _ in COLUMNS]
    header = ["h", "d_z", *titles, *BOUNDS, "paper MD-VAE", *(f"paper {name}" for name in PAPER_BASELINES)]
    lines = [_row(header), _row(["---"] * len(header))]
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
            lines.append(_row([mixing, str(dim), *entries, *paper]))
    return lines


def _bound(bounds: dict[str, list[float]], name: str) -> str:
    return f"{np.nanmedian(np.asarray(bounds[name], dtype=float)):.3f}" if name in bounds else ""


def ordering_table(cells: list[Cell]) -> list[str]:
    """On how many seeds one model beats another, on the same data."""
    pairs = ((2, 1), (3, 1), (4, 2), (4, 3), (1, 0), (2, 0))
    lines = [_row(["h", "d_z", "|U|", *(f"{COLUMNS[a][0]} > {COLUMNS[b][0]}" for a, b in pairs)])]
    lines.append(_row(["---"] * (len(pairs) + 3)))
    for mixing, dim, num in ((m, d, k) for m in MIXINGS for d in DIMS for k in CONDITIONS):
        entries = []
        for pair in pairs:
            sides = [(find(cells, COLUMNS[i][1], mixing, dim, num), COLUMNS[i][2]) for i in pair]
            values = [cell.values(score) for cell, score in sides if cell is not None]
            entries.append(
                f"{int((values[0] > values[1]).sum())} of {len(values[0])}" if len(values) == 2 else ""
            )
        if any(entries):
            lines.append(_row([mixing, str(dim), str(num), *entries]))
    return lines


def sweep_table(cells: list[Cell], oracles: dict[str, Any]) -> list[str]:
    """Median MCC over |U| beside the paper's and what bounds it."""
    lines = [_row(["h", "d_z", "model", *(f"|U| = {num}" for num in CONDITIONS)]), _row(["---"] * 8)]
    for dim in DIMS:
        lines.append(_row(["paper", str(dim), "MD-VAE", *(f"{value:.2f}" for value in PAPER_TABLE[dim])]))
        for title, values in PAPER_BASELINES.items():
            lines.append(
                _row(["paper", str(dim), title, *("" if n != 8 else values[dim] for n in CONDITIONS)])
            )
        for mixing in MIXINGS:
            for title, name, score in COLUMNS:
                row = [find(cells, name, mixing, dim, num) for num in CONDITIONS]
                if any(row):
                    medians = [f"{np.median(cell.values(score)):.3f}" if cell else "" for cell in row]
                    lines.append(_row([mixing, str(dim), title, *medians]))
            found = [oracles.get(f"{mixing}_d{dim}_u{num}", {}) for num in CONDITIONS]
            for title, name in BOUNDS.items():
                if any(found):
                    lines.append(_row([mixing, str(dim), title, *(_bound(one, name) for one in found)]))
    return lines


def epochs_table(cells: list[Cell]) -> list[str]:
    """Median MCC as training goes on; after the last epoch all other scores and the parts of the bound."""
    epochs = sorted({epoch for cell in cells for epoch in cell.scores}, key=int)
    others = {"Spearman": "mcc_spearman", "held out": "mcc_held_out", "by u": "mcc_by_condition"}
    others |= {"R2": "r2", "R2 by u": "r2_by_condition"}
    bound = {"-log p(x given z)": "reconstruction", "KL": "kl", "ELBO": "elbo"}
    header = ["cell", "latent", *(f"MCC at {epoch}" for epoch in epochs), *others, *bound]
    lines = [_row(header), _row(["---"] * len(header))]
    for cell in cells:
        for prefix in (prefix for prefix in LATENTS if f"{prefix}mcc" in cell.last):
            over_time = [
                f"{np.median(cell.values(prefix + 'mcc', e)):.3f}" if e in cell.scores else "" for e in epochs
            ]
            last = [*(prefix + name for name in others.values()), *bound.values()]
            medians = [f"{np.median(cell.values(name)):.3f}" for name in last]
            lines.append(_row([cell.content["cell"], prefix.rstrip("_") or "own", *over_time, *medians]))
    return lines


def control_tables(controls: list[dict[str, Any]]) -> list[str]:
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
    lines = [_row(["cell", *names]), _row(["---"] * 8)]
    for entry in controls:
        if "rotation" in entry:
            lines.append(_row([entry["cell"], *(_bound(entry["rotation"], name) for name in names)]))
    fields = ("rank", "needed", "effective_rank", "condition_number", "largest_contrast")
    lines += ["", _row(["cell", "generator", *fields]), _row(["---"] * 7)]
    for entry in controls:
        for kind in ("true", "learned"):
            found = [one[kind] for one in entry["diversity"]]
            lines.append(_row([entry["cell"], kind, *(_median(found, name) for name in fields)]))
    return lines


def _median(found: list[dict[str, Any]], name: str) -> str:
    """Over the measured seeds; JSON has no infinity, the files hold null for it."""
    values = [np.inf if one[name] is None else one[name] for one in found]
    return f"{np.median(values):.3g}" if values else ""


def ablation_table(cells: list[Cell], controls: list[dict[str, Any]], oracles: dict[str, Any]) -> list[str]:
    """What MCL did to scores, bound and mechanism diversity, beside the same model without it."""
    titles = ["model", "MCL mode", "weight", "MCC", "seeds ahead of no MCL", "MCC by u", "ELBO"]
    titles += ["MCL accuracy", "GMD rank", "effective rank", "condition number"]
    lines = [_row(titles), _row(["---"] * len(titles))]
    base = next((cell for cell in cells if cell.name == ABLATION_BASE), None)
    if base is None:
        return lines
    diversity = {entry["cell"]: entry["diversity"] for entry in controls}
    for cell in (cell for cell in cells if cell.name.startswith(ABLATION)):
        identity = cell.content["identity"]
        model, weight = identity["model"], identity["optimisation"]["mcl_weight"]
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
        lines.append(_row(entries))
    data = base.content["identity"]["data"]
    bounds: dict[str, Any] = next((found for found in oracles.values() if found["data"] == data), {})
    lines += [_row([title, "", "", _bound(bounds, name), *[""] * 7]) for title, name in BOUNDS.items()]
    true = [one["true"] for one in diversity.get(base.content["cell"], [])]
    ranks = [_median(true, name) for name in ("rank", "effective_rank", "condition_number")]
    return [*lines, _row(["true generator", *[""] * 7, *ranks])]


def violins(cells: list[Cell], path: Path) -> None:
    """MCC of all seeds at |U| = 8: a row of panels per mixing, a line per model that was run."""
    rows = [mixing for mixing in MIXINGS if any((c.mixing, c.num_conditions) == (mixing, 8) for c in cells)]
    shown = [
        column
        for column in COLUMNS
        if any(find(cells, column[1], mixing, dim, 8) for mixing in rows for dim in DIMS)
    ]
    size = (11, 1 + (0.8 + 0.32 * len(shown)) * len(rows))
    figure, axes = plt.subplots(
        len(rows), len(DIMS), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for (row, mixing), (column, dim) in ((m, d) for m in enumerate(rows) for d in enumerate(DIMS)):
        axis = axes[row, column]
        for place, (_, name, score) in enumerate(shown):
            if cell := find(cells, name, mixing, dim, 8):
                values = cell.values(score)
                values = values[np.isfinite(values)]
                shape = axis.violinplot(
                    values, [place], showmedians=True, widths=0.8, orientation="horizontal"
                )
                for part in (*shape.pop("bodies"), *shape.values()):
                    part.set_color(f"C{place}")
        axis.axvline(PAPER_TEXT[dim], color="grey", linestyle=":", linewidth=1)
        axis.set_title(f"{mixing} h, d_z = {dim}", fontsize=9)
        axis.set_yticks(range(len(shown)), [title for title, _, _ in shown], fontsize=8)
        axis.set_xlim(0.3, 1)
        axis.grid(axis="x", alpha=0.3)
    axes[0, 0].invert_yaxis()
    axes[-1, 0].set_xlabel("MCC over seeds, |U| = 8 (dotted: paper)")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_report(results: Path) -> None:
    """tables.md and mcc.png from whatever has been collected."""
    cells = load_cells(results)
    cells += best_of_restarts(cells)
    oracles = {
        path.stem: json.loads(path.read_text()) for path in sorted((results / "oracles").glob("*.json"))
    }
    controls = [json.loads(path.read_text()) for path in sorted((results / "controls").glob("*.json"))]
    sections = {
        "MCC at |U| = 8, median [quartiles] over seeds": main_table(cells, oracles),
        "Median MCC over |U|": sweep_table(cells, oracles),
        "On how many seeds one model is ahead of another": ordering_table(cells),
        "MCL modes and weights": ablation_table(cells, controls, oracles),
        "Over training": epochs_table(cells),
        "Rotation control and mechanism diversity": control_tables(controls),
    }
    text = [
        "# Simulation study: tables",
        "",
        "Written by `python eval/simulation.py report`; do not edit.",
        "",
    ]
    for title, lines in sections.items():
        text += [f"## {title}", "", *lines, ""]
    (results / "tables.md").write_text("\n".join(text))
    violins(cells, results / "mcc.png")


def _row(entries: list[str]) -> str:
    return "| " + " | ".join(entry.replace("|U|", "\\|U\\|") for entry in entries) + " |"
