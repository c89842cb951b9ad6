"""Tables of scores over seeds, with cost and published numbers."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from studies.disentanglement.rows import POINTS, Study
from worldmodel.mddiff.evaluation.scores import NOT_COMPUTED
from worldmodel.mddiff.training.cost import Cost, read_cost
from worldmodel.report.intervals import mean_estimate
from worldmodel.report.page import Table

COLUMNS = {  # title -> section of the result, name, digits
    "FactorVAE": ("scores", "factor_vae", 3),
    "DCI": ("scores", "dci", 3),
    "MIG": ("scores", "mig", 3),
    "SSIM": ("pictures", "ssim", 3),
    "PSNR": ("pictures", "psnr", 2),
    "MSE": ("pictures", "mse", 5),
    "LPIPS": ("pictures", "lpips", 3),
    "FID": ("pictures", "fid", 2),
}
COSTS = ("active codes", "CPU min", "pictures", "parameters")
SOURCE = "Factored Generative Models through Mechanism Diversity"
# FactorVAE score and DCI disentanglement on Cars3D, Shapes3D and MPI3D from Table 1 of SOURCE; not our
# results.
PAPER_DATA = ("Cars3D", "Shapes3D", "MPI3D")
PAPER = {  # mean +- standard deviation
    "FactorVAE": ".906+-.052, .161+-.019, .840+-.066, .611+-.082, .152+-.025, .240+-.051",
    "beta-TCVAE": ".855+-.082, .140+-.019, .873+-.074, .613+-.114, .179+-.017, .237+-.056",
    "InfoGAN-CR": ".411+-.013, .020+-.011, .587+-.058, .478+-.055, .439+-.061, .241+-.075",
    "LatentDisco": ".852+-.039, .216+-.072, .805+-.064, .380+-.062, .391+-.039, .196+-.038",
    "GANspace": ".932+-.018, .209+-.031, .788+-.091, .284+-.034, .465+-.036, .229+-.042",
    "DisCo": ".855+-.074, .271+-.037, .877+-.031, .708+-.048, .371+-.030, .292+-.024",
    "DisDiff": ".976+-.018, .232+-.019, .902+-.043, .723+-.013, .617+-.070, .337+-.057",
    "EncDiff": ".773+-.060, .279+-.022, .999+-.000, .969+-.030, .872+-.049, .685+-.044",
    "MDDiff": ".985+-.048, .493+-.025, 1.000+-.000, .993+-.030, .930+-.049, .679+-.010",
}


@dataclass(frozen=True)
class ScoredModel:
    """All seeds of one row of the study, at one point of training."""

    name: str
    point: str  # last, or best (chosen by the validation score)
    results: tuple[dict[str, Any], ...]  # one per seed
    folders: tuple[Path, ...]  # run folder of each seed
    costs: tuple[Cost | None, ...] = ()  # of each seed, including the stages before; none: not recorded

    @property
    def title(self) -> str:
        """Title in tables."""
        return self.name.replace("_", " ")

    def values(self, title: str) -> list[float]:
        """The values of a column, one per seed; nan if not computed."""
        section, name, _ = COLUMNS[title]
        return [_number(result[section].get(name, NOT_COMPUTED)) for result in self.results]

    def cell(self, title: str) -> str:
        """Mean and interval over seeds, or "not computed"."""
        section, name, digits = COLUMNS[title]
        entries = [result[section].get(name, NOT_COMPUTED) for result in self.results]
        if any(entry == NOT_COMPUTED for entry in entries):
            return NOT_COMPUTED
        is_comparable = all(entry.get("comparable", True) for entry in entries)
        return mean_estimate(self.values(title)).text(digits) + ("" if is_comparable else " *")

    def cost_cells(self) -> tuple[str, ...]:
        """Used codes and cost, averaged over seeds."""
        active = [result["scores"]["factor_vae"].get("num_active") for result in self.results]
        known = [cost for cost in self.costs if cost is not None]
        return (
            "-" if None in active else f"{sum(active) / len(active):.1f}",
            *(
                (
                    f"{sum(cost.cpu_seconds for cost in known) / len(known) / 60:.1f}",
                    f"{known[0].pictures:,}",
                    f"{known[0].parameters:,}",
                )
                if known
                else ("-", "-", "-")
            ),
        )


def read_models(runs: Path, study: Study) -> list[ScoredModel]:
    """Every row with scores, in the order of the study."""
    models = []
    for row in (row for row in study.rows if row.is_scored):
        for point in POINTS:
            files = sorted(runs.glob(f"{row.run}/seed*/scores_{row.name}_{point}.json"))
            if files:
                results = tuple(json.loads(file.read_text()) for file in files)
                folders = tuple(file.parent for file in files)
                costs = tuple(total_cost(runs, study, row.name, folder.name) for folder in folders)
                models.append(ScoredModel(row.name, point, results, folders, costs))
    return models


def total_cost(runs: Path, study: Study, name: str, seed_folder: str) -> Cost | None:
    """Time and pictures summed over all stages of a row, parameters of its last; None if one is unknown."""
    total = None
    for stage in study.stages(name):
        cost = read_cost(runs / stage.run / seed_folder)
        if cost is None:
            return None
        before = (total.cpu_seconds, total.pictures) if total else (0.0, 0)
        total = replace(cost, cpu_seconds=cost.cpu_seconds + before[0], pictures=cost.pictures + before[1])
    return total


def seed_scores(models: Sequence[ScoredModel]) -> dict[str, dict[str, Any]]:
    """The numbers of the tables, ROW/POINT/seedN -> scores; scores that were not computed are omitted."""
    return {
        f"{model.name}/{model.point}/{folder.name}": {"seed": int(folder.name.removeprefix("seed"))}
        | {
            name: round(number, 5)
            for title, (_, name, _) in COLUMNS.items()
            if math.isfinite(number := model.values(title)[place])
        }
        for model in models
        for place, folder in enumerate(model.folders)
    }


def comparison_table(models: Sequence[ScoredModel]) -> Table:
    """One line per model and point of training."""
    rows = tuple(
        (model.title, model.point, str(len(model.results)), *map(model.cell, COLUMNS), *model.cost_cells())
        for model in models
    )
    note = (
        "Mean over seeds with its 95 % t interval. 'best' is the checkpoint with the highest FactorVAE score "
        "in passing, so it is chosen on the metric it is judged by. 'last' is not chosen. CPU minutes and "
        "pictures include the first stage and the stages before. Parameters are those trained in the row's "
        "own stage. Active codes: standard deviation above 0.05."
    )
    if any(cell.endswith(" *") for row in rows for cell in row):
        note += " * DCI on fewer points than published scores use: not comparable with them."
    counts = sorted({_counts(result) for model in models for result in model.results})
    return Table(("model", "weights", "seeds", *COLUMNS, *COSTS), rows, note=f"{note} {'. '.join(counts)}.")


def paper_table() -> Table:
    """Published numbers, for orientation."""
    header = ("method", *(f"{data} {score}" for data in PAPER_DATA for score in ("FactorVAE", "DCI")))
    rows = tuple((name, *values.replace("+-", " +- ").split(", ")) for name, values in PAPER.items())
    note = f"Published in '{SOURCE}' (Table 1), not run by us. Other data and budgets."
    return Table(header, rows, note=note)


def _number(entry: Any) -> float:
    if entry == NOT_COMPUTED:
        return float("nan")
    value = entry["value"] if "value" in entry else entry["mean"]
    return float("nan") if value is None else float(value)


def _counts(result: dict[str, Any]) -> str:
    used = result["evaluation"]
    pictures = f"{result['num_pictures']} pictures"
    return f"{pictures}, {used['num_votes']} votes, DCI on {used['dci_train']}/{used['dci_test']} points"
