"""The collected cells of the identifiability study: what was run, and what is published beside it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.cells_file import read_cells

MIXINGS, DIMS, CONDITIONS = ("orthogonal", "generic"), (5, 10, 20), (2, 4, 8, 16, 32)
SOURCE = "Factored Generative Models through Mechanism Diversity"
# What it reports: section 5.1 at |U| = 8, and Table 5.
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
# Columns: title, cell name, score. The iVAE standardized by its prior is the tied MD-VAE, number for number.
COLUMNS = (
    ("beta-VAE", "beta_vae", "mcc"),
    ("iVAE as is", "ivae", "mcc"),
    ("MD-VAE concat", "concat", "mcc"),
    ("MD-VAE modulated", "modulated", "mcc"),
    ("MD-VAE tied = iVAE standardized", "ivae", "standardized_mcc"),
    ("MD-VAE tied, full posterior", "tied_full", "mcc"),
    ("the same, aligned", "tied_full", "aligned_mcc"),
    ("the same, best of 3 starts by ELBO", "tied_full_restarts", "aligned_mcc"),
    ("beta-VAE aligned", "beta_vae", "aligned_mcc"),
    ("MD-VAE tied, aligned", "ivae", "aligned_mcc"),
    ("MD-VAE modulated, aligned", "modulated", "aligned_mcc"),
)
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
    for content in read_cells(results, "cells").values():
        data = content["identity"]["data"]
        key = (content["identity"]["name"], data["mixing"], data["latent_dim"], data["num_conditions"])
        cells.append(Cell(*key, content["scores"], content))
    return sorted(cells, key=lambda cell: cell.content["cell"])


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
