"""Tables and figures of the near-identifiability study, from its cells."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from studies.cells_file import read_cells
from worldmodel.report.figures import INK, save_figure, styled
from worldmodel.report.page import Page, Section, Table, write_page

ORDER = ("uniform", "laplace", "normal", "dsprites")  # of the cells in tables and figures
FIGURES = {
    "statistical": ("between runs", ("affine_r2", "mcc", "mcc_ica", "epsilon_scaled", "epsilon_permutation")),
    "structural": (
        "to the factors",
        ("affine_r2", "mcc", "mcc_ica", "epsilon_scaled", "epsilon_permutation"),
    ),
}
LABELS = {
    "affine_r2": "affine R2",
    "epsilon_rigid": "eps rigid",
    "epsilon_scaled": "eps rigid + scale",
    "epsilon_permutation": "eps permutation (ICA)",
    "mcc": "MCC raw",
    "mcc_ica": "MCC after ICA",
}


def write_report(folder: Path) -> None:
    """Write tables.md and one figure per question, atomically."""
    cells = list(read_cells(folder).values())
    cells.sort(key=lambda cell: (ORDER.index(cell["cell"].split()[0]), cell["cell"]))
    sections = [
        Section(f"Agreement {title}: mean [smallest, largest]", (_table(cells, kind),))
        for kind, (title, _) in FIGURES.items()
    ]
    sections.append(Section("Fit and trust", (_health(cells),)))
    write_page(Page("Near-identifiability: tables", "", tuple(sections)), folder / "tables.md")
    for kind, (title, names) in FIGURES.items():
        _figure(cells, kind, title, names, folder / f"{kind}.png")


def _table(cells: list[dict], kind: str) -> Table:
    rows = []
    for cell in cells:
        values = (_values(cell, kind, name) for name in LABELS)
        parts = (f"{part.mean():.3f} [{part.min():.3f}, {part.max():.3f}]" for part in values)
        rows.append((cell["cell"], *parts))
    return Table(("cell", *LABELS.values()), tuple(rows))


def _health(cells: list[dict]) -> Table:
    """How well the autoencoders fit, and the reliability of the components."""
    header = (
        *("cell", "error / variance", "generator ratio (median, 95 %)", "decoder ratio", "components"),
        *("ICA stability (median, worst)", "excess kurtosis", "restarts converged", "CPU s"),
    )
    rows = []
    for cell in cells:
        stability, kurtosis, converged = (
            np.concatenate([run[name] for run in cell["ica"]])
            for name in ("stability", "kurtosis", "converged")
        )
        facts = cell["facts"]
        ratio = (
            f"{facts['generator_ratio_median']:.2f}, {facts['generator_ratio_95']:.2f}"
            if facts
            else "unknown"
        )
        counts = sorted({run["num_components"] for run in cell["ica"]})
        rows.append(
            (
                cell["cell"],
                f"{np.mean(cell['relative_error']):.4f}",
                ratio,
                f"{np.median(cell['decoder_ratio_median']):.2f}",
                ", ".join(map(str, counts)),
                f"{np.median(stability):.2f}, {stability.min():.2f}",
                f"{kurtosis.min():.2f} to {kurtosis.max():.2f}",
                f"{converged.sum():.0f} of {len(converged)}",
                f"{cell['total_cpu_s']:.0f}",
            )
        )
    return Table(header, tuple(rows))


@styled
def _figure(cells: list[dict], kind: str, title: str, names: tuple[str, ...], path: Path) -> None:
    figure = Figure(figsize=(3 * len(names), 0.4 * len(cells) + 1.2), layout="constrained")
    axes = figure.subplots(1, len(names), sharey=True)
    for axis, name in zip(axes, names, strict=True):
        for row, cell in enumerate(cells):
            values = _values(cell, kind, name)
            axis.scatter(
                values, np.full(len(values), row), s=14, alpha=0.6, color=f"C{row // 2}", linewidths=0
            )
            axis.scatter(values.mean(), row, marker="|", s=180, color=INK)
        axis.set_title(LABELS[name])
        axis.set_xlabel("0 is exact" if name.startswith("epsilon") else "1 is exact")
        axis.set_xlim(0, max(1.02, axis.get_xlim()[1]))
        axis.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(cells)), [cell["cell"] for cell in cells])
    axes[0].invert_yaxis()
    figure.suptitle(f"Agreement {title}: every point a pair or a run, the bar their mean")
    save_figure(figure, path)


def _values(cell: dict, kind: str, name: str) -> np.ndarray:
    return np.array([agreement[name]["value"] for agreement in cell[kind]], float)
