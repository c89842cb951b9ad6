"""Scores of many runs -> tables over seeds, and one page with traversals, swaps and training dynamics."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.concept_models import SampledPictures, open_concept_model, with_independent_codes
from eval.concept_pictures import (
    code_meanings,
    draw_attention,
    draw_dynamics,
    draw_rows,
    factor_swaps,
    traversals,
)
from eval.disentanglement import NOT_COMPUTED
from eval.disentanglement_rows import Study
from eval.disentanglement_work import POINTS, Failure
from eval.estimates import mean_estimate
from eval.report import Figures, Page, Section, Table, Text, Verdict, write_page
from worldmodel.data.factors.types import FactorDataset

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
# FactorVAE score / DCI disentanglement of Table 1 of the paper, on its data sets; none of these is ours.
PAPER = {
    "cars3d": {
        "FactorVAE": (".906 +- .052", ".161 +- .019"),
        "beta-TCVAE": (".855 +- .082", ".140 +- .019"),
        "DisDiff": (".976 +- .018", ".232 +- .019"),
        "EncDiff": (".773 +- .060", ".279 +- .022"),
        "MDDiff": (".985 +- .048", ".493 +- .025"),
    },
    "shapes3d": {
        "FactorVAE": (".840 +- .066", ".611 +- .082"),
        "beta-TCVAE": (".873 +- .074", ".613 +- .114"),
        "DisDiff": (".902 +- .043", ".723 +- .013"),
        "EncDiff": (".999 +- .000", ".969 +- .030"),
        "MDDiff": ("1.000 +- .000", ".993 +- .030"),
    },
    "mpi3d": {
        "FactorVAE": (".152 +- .025", ".240 +- .051"),
        "beta-TCVAE": (".179 +- .017", ".237 +- .056"),
        "DisDiff": (".617 +- .070", ".337 +- .057"),
        "EncDiff": (".872 +- .049", ".685 +- .044"),
        "MDDiff": (".930 +- .049", ".679 +- .010"),
    },
}


@dataclass(frozen=True)
class ScoredModel:
    """All seeds of one row of the study, at one point of training."""

    name: str
    point: str  # last, or best (chosen by the validation score)
    results: tuple[dict[str, Any], ...]  # one per seed
    folders: tuple[Path, ...]  # run folder of each seed

    def cell(self, title: str) -> str:
        """Mean and interval over seeds; what was not computed says so."""
        section, name, digits = COLUMNS[title]
        entries = [result[section].get(name, NOT_COMPUTED) for result in self.results]
        if any(entry == NOT_COMPUTED for entry in entries):
            return NOT_COMPUTED
        return mean_estimate([_number(entry) for entry in entries]).text(digits)


def comparison_table(models: Sequence[ScoredModel]) -> Table:
    """A row per model and point of training."""
    rows = tuple(
        (model.name.replace("_", " "), model.point, str(len(model.results)), *map(model.cell, COLUMNS))
        for model in models
    )
    note = (
        "Mean over seeds with its 95 % t interval. 'best' is the checkpoint with the highest FactorVAE score "
        "in passing, that is, chosen on the metric it is judged by; 'last' is not chosen."
    )
    counts = sorted({_counts(result) for model in models for result in model.results})
    return Table(("model", "weights", "seeds", *COLUMNS), rows, note=f"{note} {'; '.join(counts)}.")


def paper_table() -> Table:
    """What the paper reports, for orientation."""
    names = list(PAPER["shapes3d"])
    header = ("method", *(f"{data} {score}" for data in PAPER for score in ("FactorVAE", "DCI")))
    rows = tuple((name, *(value for data in PAPER for value in PAPER[data][name])) for name in names)
    return Table(
        header, rows, note="Published by the paper (Table 1), not run by us; other data and budgets."
    )


def read_models(runs: Path, study: Study) -> list[ScoredModel]:
    """Every row whose scores exist, in the order of the study."""
    models = []
    for row in (row for row in study.rows if row.is_scored):
        for point in POINTS:
            files = sorted(runs.glob(f"{row.run}/seed*/scores_{row.name}_{point}.json"))
            if files:
                results = tuple(json.loads(file.read_text()) for file in files)
                models.append(ScoredModel(row.name, point, results, tuple(file.parent for file in files)))
    return models


def write_report(
    runs: Path,
    models: Sequence[ScoredModel],
    dataset: FactorDataset,
    failures: Sequence[Failure],
    *,
    ddim_steps: int,
    seed: int = 0,
) -> Path:
    """RUNS/report.html and report.md with figures beside them."""
    figures = runs / "figures"
    last = [model for model in models if model.point == "last"]
    trained = {model.name: model.folders for model in last}
    draw_dynamics(figures / "dynamics.png", trained, ("factor_vae", "mig"))
    sections = [
        Section("Scores", (*failure_blocks(failures), comparison_table(models))),
        Section("The paper", (paper_table(),)),
        Section(
            "During training",
            (
                Figures(
                    ((figures / "dynamics.png", "scores of a few thousand pictures; a line per seed"),), True
                ),
            ),
        ),
    ]
    sections += [picture_section(model, dataset, figures, ddim_steps, seed) for model in last]
    sizes = " x ".join(map(str, dataset.factor_sizes))
    lead = f"{dataset.name}: {len(dataset)} pictures, {', '.join(dataset.factor_names)} ({sizes})."
    return write_page(Page("Disentanglement", lead, tuple(sections)), runs)


def failure_blocks(failures: Sequence[Failure]) -> tuple[Verdict, ...]:
    """What is missing from the tables; nothing when nothing is."""
    if not failures:
        return ()
    reasons = tuple(f"{failure.row}, seed {failure.seed} {failure.text}" for failure in failures)
    return (Verdict(f"{len(failures)} runs have no result", reasons, False),)


def picture_section(
    scored: ScoredModel, dataset: FactorDataset, figures: Path, ddim_steps: int, seed: int
) -> Section:
    """Traversals, swaps and attention of the first seed's last weights."""
    model = open_concept_model(scored.folders[0] / "model", ddim_steps=ddim_steps)
    diffusion = model.model if isinstance(model, SampledPictures) else None
    if scored.results[0]["evaluation"]["ica"]:
        model = with_independent_codes(model, code_meanings(model, dataset).codes)
    meanings = code_meanings(model, dataset)
    rng = np.random.default_rng(seed)
    source, target = (dataset.images(rng.integers(len(dataset), size=6)) for _ in range(2))
    moved = traversals(model, meanings, model.encode(source[:1])[0].cpu())
    swapped = factor_swaps(model, meanings, source, target)
    items = []
    for kind, rows in (("traversals", moved), ("swaps", swapped)):
        if rows:
            draw_rows(figures / f"{scored.name}_{kind}.png", rows)
            items.append(
                (figures / f"{scored.name}_{kind}.png", f"{kind} of {scored.name.replace('_', ' ')}")
            )
    if diffusion is not None:
        draw_attention(figures / f"{scored.name}_attention.png", diffusion, meanings, source)
        items.append((figures / f"{scored.name}_attention.png", "attention to each concept's token"))
    text = Text(
        "Traversals: each row moves one code over its range; the label names the factor that the code tells "
        "most about, and the share of the factor's entropy. Swaps: codes of one factor come from the target."
    )
    return Section(scored.name.replace("_", " "), (text, Figures(tuple(items))))


def _number(entry: dict[str, Any]) -> float:
    value = entry["value"] if "value" in entry else entry["mean"]
    return float("nan") if value is None else float(value)


def _counts(result: dict[str, Any]) -> str:
    used = result["evaluation"]
    pictures = f"{result['num_pictures']} pictures"
    return f"{pictures}, {used['num_votes']} votes, DCI on {used['dci_train']}/{used['dci_test']} points"
