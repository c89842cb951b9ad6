"""What each arm of a study gains over the arm without MCL, paired by seed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import ttest_1samp

from studies.identifiability.cells import Cell
from worldmodel.report.intervals import mean_estimate
from worldmodel.report.page import Page, Section, Table, write_page

BASE = "none"
PATHS = ("mcl_accuracy", "mcl_accuracy_direct", "mcl_accuracy_generator", "mcl_generator_share")


def gains_table(cells: list[Cell]) -> Table:
    """Gain in MCC and bound over `BASE`, p values after Holm over all arms, and the contrast by path."""
    base = next((cell for cell in cells if cell.name == BASE), None)
    if base is None:
        raise ValueError(f"gains are over the cell called {BASE}: train and collect it")
    arms = [cell for cell in cells if cell is not base]
    for cell in arms:
        if cell.content["seeds"] != base.content["seeds"]:
            raise ValueError(f"{cell.name} has other seeds than {BASE}: gains are paired by seed")
    gains = [cell.values("mcc") - base.values("mcc") for cell in arms]
    corrected = holm([float(ttest_1samp(gain, 0, nan_policy="omit").pvalue) for gain in gains])
    rows = [_row(base, "", "", "")]
    for cell, gain, p in zip(arms, gains, corrected, strict=True):
        bound = mean_estimate(cell.values("elbo") - base.values("elbo")).text(2)
        rows.append(_row(cell, mean_estimate(gain).text(3), f"{p:.3f}", bound))
    header = ("arm", "epochs", "CPU s", "median MCC", "gain in MCC", "p, Holm", "gain in the bound, nats")
    return Table((*header, "accuracy", "direct path", "generator path", "generator's share"), tuple(rows))


def _row(cell: Cell, gain: str, p: str, bound: str) -> tuple[str, ...]:
    median = f"{np.nanmedian(cell.values('mcc')):.3f}"
    paths = [f"{np.nanmean(cell.values(name)):.2f}" if name in cell.last else "" for name in PATHS]
    seconds = f"{cell.content['cpu_seconds']:.0f}"
    return (cell.name, str(cell.content["epoch"]), seconds, median, gain, p, bound, *paths)


def write_gains(cells: list[Cell], results: Path) -> None:
    """Write gains.md."""
    section = Section("Gains over training without MCL", (gains_table(cells),))
    write_page(Page("Does a reading that needs the generator help?", "", (section,)), results / "gains.md")


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p values: the smallest times n, the next times n - 1, and so on."""
    order = np.argsort(p_values)
    steps = [p_values[place] * (len(order) - rank) for rank, place in enumerate(order)]
    corrected = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(corrected[rank]) for rank in np.argsort(order)]
