"""The width of the decoder that the held-out bound chooses, and the study file of the cells that use it."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from studies.identifiability.cells import Cell

SEARCH = "configs/identifiability/decoder_width.yaml"
PUBLISHED_LIKE = 0.3  # nearest to the published numbers in an earlier search by MCC, on other seeds
MODELS = ("concat", "ivae", "beta_vae")
TRAINING = (
    "num_seeds=12, first_seed=100, optimization.epochs=200, optimization.lr=0.001, "
    'optimization.schedule=constant, "report_epochs=[50,100,150,200]"'
)


def chosen_widths(cells: list[Cell]) -> dict[tuple[str, int], float]:
    """(model, d_z) -> the fixed width with the largest mean held-out bound over the seeds of the search."""
    bounds: dict[tuple[str, int], dict[float, float]] = defaultdict(dict)
    for cell in cells:
        model, preset = cell.content["identity"]["model"], cell.name.rsplit("_s", 1)
        if len(preset) == 2 and not model["learns_std"]:
            mean = np.nan_to_num(cell.values("elbo"), nan=-np.inf).mean()
            bounds[preset[0], cell.latent_dim][model["decoder_std"]] = float(mean)
    return {key: max(found, key=lambda width: found[width]) for key, found in bounds.items()}


def study_of(widths: dict[tuple[str, int], float]) -> str:
    """The study file of the cells at these widths and at `PUBLISHED_LIKE`, in order of work."""
    lines = [f"# Written by eval/study.py identifiability choose from the cells of {SEARCH}.", "grids:"]
    dims = sorted({dim for _, dim in widths})
    for dim in dims:
        for kind in ("chosen", PUBLISHED_LIKE):
            lines += [_grid(model, dim, kind, widths[model, dim]) for model in MODELS]
    settings = "data.num_conditions: [2, 4, 16, 32]"
    for kind, dim in ((kind, dim) for dim in dims for kind in (PUBLISHED_LIKE, "chosen")):
        lines += [_grid(model, dim, kind, widths[model, dim], settings) for model in ("concat", "ivae")]
    generic = "data.mixing: [generic]"
    for kind in (PUBLISHED_LIKE, "chosen"):
        lines += [_grid(model, dims[0], kind, widths[model, dims[0]], generic) for model in MODELS]
    return "\n".join(lines) + "\n"


def _grid(model: str, dim: int, kind: str | float, chosen: float, swept: str = "") -> str:
    name, width = (f"{model}_chosen", chosen) if kind == "chosen" else (f"{model}_at{kind}", kind)
    return (
        f"  - sweep: {{preset: [{model}], data.latent_dim: [{dim}]{swept and ', ' + swept}}}\n"
        f"    name: {name}\n    settings: [model.decoder_std={width}, {TRAINING}]"
    )


def write_choice(cells: list[Cell], path: Path) -> None:
    """Write the study file, and say what was chosen."""
    widths = chosen_widths(cells)
    if not widths:
        raise ValueError(f"no cells to choose a width from: train and collect those of {SEARCH}")
    path.write_text(study_of(widths))
    for (model, dim), width in sorted(widths.items()):
        print(f"{model} d_z {dim}: {width}")
