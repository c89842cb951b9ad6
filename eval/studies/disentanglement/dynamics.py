"""Scores during training against the number of training pictures.

Later stages continue where earlier ended.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from studies.disentanglement.rows import Study
from worldmodel.mddiff.training.cost import read_cost
from worldmodel.report.figures import save_figure, styled

STYLES = ("-", "--", ":", "-.", (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2)), (0, (8, 3)))


@dataclass(frozen=True)
class Curve:
    """One run of a row."""

    name: str
    family: str  # the first row of its stages that is scored
    folder: Path
    batch: int  # pictures per step
    start: int  # training pictures of the scored stages before it

    def points(self, score: str) -> tuple[list[int], list[float]]:
        """Numbers of training pictures and values of one score."""
        steps, values = validation_curve(self.folder, score)
        return [self.start + step * self.batch for step in steps], values


def read_curves(runs: Path, study: Study) -> list[Curve]:
    """Every finished run of the trained and scored rows; first stages have no scores."""
    curves = []
    for row in (row for row in study.rows if row.is_scored and row.command):
        stages = [stage for stage in study.stages(row.name) if stage.is_scored]
        for folder in sorted(runs.glob(f"{row.run}/seed*")):
            costs = [read_cost(runs / stage.run / folder.name) for stage in stages]
            known = [cost for cost in costs if cost is not None]
            if len(known) == len(stages):
                start = sum(cost.pictures for cost in known[:-1])
                curves.append(Curve(row.name, stages[0].name, folder, known[-1].batch, start))
    return curves


@styled
def draw_dynamics(path: Path, curves: Sequence[Curve], scores: Sequence[str]) -> None:
    """Plot one panel per score, one color per family, one line style per row, one line per seed."""
    families = list(dict.fromkeys(curve.family for curve in curves))
    members = {
        family: list(dict.fromkeys(curve.name for curve in curves if curve.family == family))
        for family in families
    }
    figure = Figure(figsize=(5.2 * len(scores), 3.6))
    axes = figure.subplots(1, len(scores), squeeze=False)
    for axis, score in zip(axes[0], scores, strict=True):
        labeled: set[str] = set()
        for curve in curves:
            label = None if curve.name in labeled else curve.name.replace("_", " ")
            labeled.add(curve.name)
            style = STYLES[members[curve.family].index(curve.name) % len(STYLES)]
            color = f"C{families.index(curve.family) % 10}"
            points = curve.points(score)
            axis.plot(*points, color=color, linestyle=style, label=label, linewidth=1.2)
        axis.set(title=score.replace("_", " "), xlabel="pictures seen")
        axis.set_xscale("log")  # at equal cost a VAE sees five times as many pictures as a diffusion model
    if curves:
        axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    save_figure(figure, path)


def validation_curve(folder: Path, score: str) -> tuple[list[int], list[float]]:
    """Steps and values of one score in a run's log."""
    lines = (folder / "log.jsonl").read_text().splitlines() if (folder / "log.jsonl").exists() else []
    records = [json.loads(line) for line in lines]
    kept = [record for record in records if record["kind"] == "validation" and score in record]
    return [record["step"] for record in kept], [record[score] for record in kept]
