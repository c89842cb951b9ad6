"""Figures of the identifiability study."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from studies.identifiability.cells import (
    COLUMNS,
    CONDITIONS,
    DIMS,
    MIXINGS,
    PAPER_TABLE,
    PAPER_TEXT,
    Cell,
    find,
)
from worldmodel.report.figures import INK, SOFT, save_figure, styled


@styled
def violins(cells: list[Cell], path: Path) -> None:
    """MCC of all seeds at |U| = 8: a row of panels per mixing, a line per model that was run."""
    rows = [mixing for mixing in MIXINGS if any((c.mixing, c.num_conditions) == (mixing, 8) for c in cells)]
    shown = [
        column
        for column in COLUMNS
        if any(find(cells, column[1], mixing, dim, 8) for mixing in rows for dim in DIMS)
    ]
    size = (11, 1 + (0.8 + 0.32 * len(shown)) * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(DIMS), sharex=True, sharey=True, squeeze=False)
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
        axis.axvline(PAPER_TEXT[dim], color=SOFT, linestyle=":", linewidth=1)
        axis.set_title(f"{mixing} h, d_z = {dim}")
        axis.set_yticks(range(len(shown)), [title for title, _, _ in shown])
        axis.set_xlim(0.3, 1)
        axis.grid(visible=False, axis="y")
    axes[0, 0].invert_yaxis()
    axes[-1, 0].set_xlabel("MCC over seeds, |U| = 8 (dotted: paper)")
    save_figure(figure, path)


@styled
def sweep_curves(cells: list[Cell], oracles: dict[str, Any], path: Path) -> None:
    """Median MCC and quartiles over |U|, orthogonal h: a panel per d_z, a line per model of the sweep."""
    mixing = "orthogonal"
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(1, len(DIMS), sharey=True)
    for axis, dim in zip(axes, DIMS, strict=True):
        for number, (title, name, score) in enumerate(COLUMNS):
            found = [(num, cell) for num in CONDITIONS if (cell := find(cells, name, mixing, dim, num))]
            if len(found) < 2:
                continue
            quartiles = [np.nanpercentile(cell.values(score), (25, 50, 75)) for _, cell in found]
            low, middle, high = np.transpose(quartiles)
            nums = [num for num, _ in found]
            axis.plot(nums, middle, marker="o", markersize=3, color=f"C{number}", label=title)
            axis.fill_between(nums, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
        for title, name, style in (("ceiling", "ceiling", "--"), ("one random rotation", "rotated", ":")):
            bounds = [oracles.get(f"{mixing}_d{dim}_u{num}", {}).get(name, [np.nan]) for num in CONDITIONS]
            medians = [np.median(np.asarray(values, dtype=float)) for values in bounds]
            axis.plot(CONDITIONS, medians, style, color=SOFT, label=title)
        axis.plot(CONDITIONS, PAPER_TABLE[dim], "x-.", color=INK, linewidth=1, label="the paper's MD-VAE")
        axis.set_xscale("log", base=2)
        axis.set_xticks(CONDITIONS, [str(num) for num in CONDITIONS])
        axis.set_title(f"d_z = {dim}")
        axis.set_xlabel("conditions |U|")
        axis.set_ylim(0.3, 1)
    axes[0].set_ylabel("MCC: median and quartiles of seeds")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save_figure(figure, path)
