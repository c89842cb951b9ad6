"""Every number of the table of readings is recomputed from the cells."""

from pathlib import Path

import numpy as np
from studies.identifiability.cells import Cell, load_cells
from studies.identifiability.gains import gains_table

from worldmodel.report.intervals import mean_estimate

RESULTS = Path("docs/results/identifiability")
ARMS = ("letter", "finite_difference", "jvp", "jacobian_vjp", "score_matched", "latent")
WEIGHTS = (1.0, 30.0, 300.0)
SHORT = ("letter", "score_matched")  # trained for 30 and 26 epochs in the same time, the others for 64 to 80


def lines(cells: dict[str, Cell]) -> list[str]:
    """The table as it stands on the page."""
    mcc = {name: cell.values("mcc") for name, cell in cells.items()}
    text = []
    for arm in ARMS:
        names = [f"{arm}_{weight}" for weight in WEIGHTS]
        alike = "none_30_epochs" if arm in SHORT else "none_80_epochs"
        paths = [
            np.nanmean(cells[names[0]].values(f"mcl_accuracy_{path}")) for path in ("direct", "generator")
        ]
        gains = [mean_estimate(mcc[name] - mcc[base]).text(3) for base in ("none", alike) for name in names]
        text.append(f"| {arm} | {paths[0]:.2f} / {paths[1]:.2f} | {' | '.join(gains)} |")
    return text


def test_the_published_numbers_are_those_of_the_cells() -> None:
    cells = load_cells(RESULTS / "needs_generator")
    page = (RESULTS.parent / "identifiability.md").read_text()
    known = {cell.name: cell for cell in cells}
    assert [line for line in lines(known) if line not in page] == []
    medians = {name: float(np.median(known[name].values("mcc"))) for name in known if name.startswith("none")}
    assert {name: f"{value:.3f}" for name, value in medians.items()} == {
        "none": "0.728",
        "none_80_epochs": "0.646",
        "none_30_epochs": "0.642",
    }
    assert len(gains_table(cells).rows) == len(cells)
    assert {len(cell.content["seeds"]) for cell in cells} == {12}
