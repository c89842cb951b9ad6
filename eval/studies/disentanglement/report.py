"""One page per study: tables, the effect of MCL, training dynamics, traversals, swaps and attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.cells_file import open_cells
from studies.disentanglement.dynamics import draw_dynamics, read_curves
from studies.disentanglement.effect import effect_section
from studies.disentanglement.first_stage import ceiling_section
from studies.disentanglement.rows import POINTS, Study
from studies.disentanglement.tables import ScoredModel, comparison_table, paper_table, seed_scores
from studies.disentanglement.work import COMMIT_FILE, Failure
from worldmodel.mddiff.data.types import FactorDataset
from worldmodel.mddiff.evaluation.models import SampledPictures, open_concept_model, with_independent_codes
from worldmodel.mddiff.evaluation.pictures import (
    code_meanings,
    draw_attention,
    factor_swaps,
    traversals,
)
from worldmodel.report.figures import draw_rows
from worldmodel.report.page import Figures, Page, Section, Text, Verdict, write_pages


@dataclass(frozen=True)
class Origin:
    """How a study was made, stated on the page."""

    command: str
    study_file: Path
    study: Study
    runs: Path
    results: Path  # folder of cells.jsonl


def write_report(
    origin: Origin,
    models: Sequence[ScoredModel],
    dataset: FactorDataset,
    failures: Sequence[Failure],
    *,
    ddim_steps: int,
    seed: int = 0,
) -> Path:
    """Write RUNS/report.html and report.md with figures, and add their numbers to cells.jsonl."""
    cells = open_cells(origin.results, "disentanglement")
    for key, scores in seed_scores(models).items():
        cells.add(f"{origin.study_file.stem}/{key}", scores)
    figures = origin.runs / "figures"
    draw_dynamics(figures / "dynamics.png", read_curves(origin.runs, origin.study), ("factor_vae", "mig"))
    caption = "Scores of a few thousand pictures. A line per seed, a color per family, MCL after its stage 1."
    sections = [
        Section("Scores", (*failure_blocks(failures), comparison_table(models))),
        effect_section(models),
        ceiling_section(origin.runs, models),
        Section("Published numbers", (paper_table(),)),
        Section("During training", (Figures(((figures / "dynamics.png", caption),), True),)),
        Section("How this was made", made_by(origin, models)),
    ]
    for name in dict.fromkeys(model.name for model in models):
        points = [model for model in models if model.name == name]
        sections.append(picture_section(points, dataset, figures, ddim_steps, seed))
    sizes = " x ".join(map(str, dataset.factor_sizes))
    lead = f"{dataset.name}: {len(dataset)} pictures, {', '.join(dataset.factor_names)} ({sizes})."
    present = tuple(section for section in sections if section is not None)
    return write_pages(Page("Disentanglement", lead, present), origin.runs)


def failure_blocks(failures: Sequence[Failure]) -> tuple[Verdict, ...]:
    """What is missing from the tables; empty if nothing is."""
    if not failures:
        return ()
    reasons = tuple(f"{failure.row}, seed {failure.seed} {failure.text}" for failure in failures)
    return (Verdict(f"{len(failures)} runs have no result", reasons, False),)


def made_by(origin: Origin, models: Sequence[ScoredModel]) -> tuple[Text, ...]:
    """Command, commits of the trainings, configs and seeds."""
    folders = {folder for model in models for folder in model.folders}
    commits = {
        (folder / COMMIT_FILE).read_text().strip() for folder in folders if (folder / COMMIT_FILE).exists()
    }
    seeds = sorted({folder.name.removeprefix("seed") for folder in folders})
    configs = dict.fromkeys(row.command[1] for row in origin.study.rows if row.command)
    return (
        Text(f"Command: {origin.command}"),
        Text(f"Commit of the trainings: {', '.join(sorted(commits)) or 'not recorded'}"),
        Text(f"Study: {origin.study_file} ({' '.join(origin.study.data)})"),
        Text(f"Configs: {', '.join(configs)}"),
        Text(f"Seeds: {', '.join(seeds)}"),
    )


def best_run(points: Sequence[ScoredModel]) -> tuple[ScoredModel, int]:
    """The weights of one row with the highest FactorVAE score, by point of training and index of the run."""
    candidates = [(model, number) for model in points for number in range(len(model.results))]
    return max(candidates, key=lambda one: one[0].values("FactorVAE")[one[1]])


def picture_section(
    points: Sequence[ScoredModel], dataset: FactorDataset, figures: Path, ddim_steps: int, seed: int
) -> Section:
    """Traversals, swaps and attention of the row's best run."""
    scored, number = best_run(points)
    folder = scored.folders[number]
    model = open_concept_model(folder / POINTS[scored.point], ddim_steps=ddim_steps)
    diffusion = model.model if isinstance(model, SampledPictures) else None
    if scored.results[number]["evaluation"]["ica"]:
        model = with_independent_codes(model, code_meanings(model, dataset).codes)
    meanings = code_meanings(model, dataset)
    rng = np.random.default_rng(seed)
    source, target = (dataset.images(rng.integers(len(dataset), size=6)) for _ in range(2))
    moved = traversals(model, meanings, model.encode(source[:1])[0].cpu())
    swapped = factor_swaps(model, meanings, source, target)
    items = []
    for kind, rows in (("traversals", moved), ("swaps", swapped)):
        if rows:
            path = figures / f"{scored.name}_{kind}.png"
            draw_rows(path, rows)
            items.append((path, f"{kind} of {scored.title}"))
    if diffusion is not None and len(meanings.shown):
        path = figures / f"{scored.name}_attention.png"
        low, high = draw_attention(path, diffusion, meanings, source)
        scale = f"dark {low:.2f} to bright {high:.2f} times an even share"
        items.append((path, f"attention to each concept's token, one scale for all: {scale}"))
    score = scored.values("FactorVAE")[number]
    text = Text(
        f"Shown: {folder.name.replace('seed', 'seed ')}, {scored.point} weights, the highest FactorVAE score "
        f"of the row ({score:.3f}). Traversals: each row moves one code over its range. The label names the "
        "factor that the code tells most about, and the share of the factor's entropy. Swaps: codes of one "
        "factor come from the target."
    )
    return Section(scored.title, (text, Figures(tuple(items))))
