"""The width of the decoder that the held-out bound chooses, and the study file of the cells that use it."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from studies.identifiability.cells import PAPER_BASELINES, PAPER_TABLE, PAPER_TEXT, Cell
from worldmodel.files import write_text
from worldmodel.report.intervals import mean_estimate
from worldmodel.report.page import Table, markdown_table

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


def write_tables(cells: list[Cell], path: Path) -> None:
    """Write what the search saw, the cells at the widths of interest, and their paired differences."""
    search = [cell for cell in cells if cell.content["identity"]["first_seed"] == 50]
    final = [cell for cell in cells if cell not in search]
    titles = (
        "Search: means over seeds 50 to 55",
        "Medians over seeds 100 to 111",
        "Paired differences of MCC",
    )
    tables = (_search_table(search), _final_table(final), _pairs_table(final))
    text = [f"## {title}\n\n{markdown_table(table)}\n" for title, table in zip(titles, tables, strict=True)]
    write_text(path, "\n".join(text))


def _width(cell: Cell) -> str:
    model = cell.content["identity"]["model"]
    return "learned" if model["learns_std"] else f"{model['decoder_std']:g}"


def _search_table(cells: list[Cell]) -> Table:
    scores = ("elbo", "mcc", "axis_angle", "mcc_turned")
    order = sorted(cells, key=lambda cell: (cell.latent_dim, cell.name.rsplit("_", 1)[0], _width(cell)))
    rows = [
        [
            *(str(cell.latent_dim), cell.name.rsplit("_", 1)[0], _width(cell)),
            *(
                f"{np.nanmean(cell.values(score)):.{digits}f}"
                for score, digits in zip(scores, (2, 3, 1, 3), strict=True)
            ),
        ]
        for cell in order
    ]
    return _table(["d_z", "model", "width", "ELBO", "MCC", "axis angle", "MCC turned"], rows)


def _final_table(cells: list[Cell]) -> Table:
    rows = []
    for cell in sorted(cells, key=_process):
        model, dim = cell.name.rsplit("_", 1)[0], cell.latent_dim
        paper = str(
            PAPER_BASELINES.get(model.replace("ivae", "iVAE").replace("beta_vae", "beta-VAE"), {}).get(
                dim, ""
            )
        )
        if model == "concat":
            paper = f"{PAPER_TEXT[dim]} / {PAPER_TABLE[dim][(2, 4, 8, 16, 32).index(cell.num_conditions)]}"
        low, middle, high = np.nanpercentile(cell.values("mcc"), (25, 50, 75))
        found = [
            f"{np.nanmedian(cell.values(score)):.{digits}f}"
            for score, digits in (("axis_angle", 1), ("mcc_turned", 3))
        ]
        rows.append(
            [
                cell.mixing,
                str(dim),
                str(cell.num_conditions),
                model,
                _width(cell),
                f"{middle:.3f} [{low:.3f}, {high:.3f}]",
                *found,
                paper,
            ]
        )
    return _table(["h", "d_z", "|U|", "model", "width", "MCC", "axis angle", "MCC turned", "published"], rows)


def _process(cell: Cell) -> tuple[str, int, int, str, str]:
    return cell.mixing, cell.latent_dim, cell.num_conditions, cell.name.rsplit("_", 1)[1], cell.name


def _pairs_table(cells: list[Cell]) -> Table:
    """By data process and width: first minus second, with a t interval over seeds."""
    groups: dict[tuple[str, int, int, str], dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        groups[_process(cell)[:4]][cell.name.rsplit("_", 1)[0]] = cell
    rows = []
    for (mixing, dim, count, kind), found in sorted(groups.items()):
        for first, second in (("concat", "ivae"), ("ivae", "beta_vae"), ("concat", "beta_vae")):
            if first in found and second in found:
                lead = found[first].values("mcc") - found[second].values("mcc")
                wins = f"{int((lead > 0).sum())} of {len(lead)}"
                rows.append(
                    [
                        mixing,
                        str(dim),
                        str(count),
                        kind,
                        f"{first} - {second}",
                        mean_estimate(lead).text(3),
                        wins,
                    ]
                )
    return _table(["h", "d_z", "|U|", "width", "models", "difference", "seeds ahead"], rows)


def _table(header: list[str], rows: list[list[str]]) -> Table:
    return Table(tuple(header), tuple(map(tuple, rows)))
