"""Tables and figures of the mechanistic-independence study from its cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from studies.cells_file import read_cells
from studies.mechanistic_independence.training import CellConfig
from worldmodel.report.figures import PALETTE, styled
from worldmodel.report.intervals import mean_estimate
from worldmodel.report.page import Figures, Page, Section, Table, Text, write_page

LABELS = {
    "none": "none",
    "contrast": "D: compositional contrast",
    "contrast_normalized": "D: the same, normalized",
    "sparse_coordinates": "S: sparse volume + grouping (ours)",
    "hessian": "H: Hessian across factors",
    "contrast_coordinates": "ablation: contrast of coordinates + grouping",
    "sparse_volume": "ablation: sparse volume of given blocks",
}
SOLVED = 0.9  # recovery above which a run counts as solved
WEIGHTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # edge weights at which components are counted
Results = dict[str, dict[str, Any]]


def write_report(results: Path, cells: list[CellConfig], score_name: Callable[[str], str]) -> None:
    """Write tables.md and its figures; missing cells are named."""
    trained = read_cells(results, "cells")
    found = {cell.name: trained[cell.name] for cell in cells if cell.name in trained}
    missing = sorted({cell.name for cell in cells} - found.keys())
    sections = [
        recovery_section(found, score_name),
        gap_section(list(read_cells(results, "gaps").values())),
        selection_section(found, score_name),
        stopping_section(found, score_name),
    ]
    if missing:
        sections.append(Section("Not run", (Text(", ".join(missing)),)))
    page = Page("Mechanistic independence: tables", "", tuple(sections))
    write_page(page, results / "tables.md")


def scores(result: dict[str, Any], name: str, step: int = -1) -> np.ndarray:
    return np.array(result["trace"][step][name], float)  # None where a seed diverged


def recovery_section(found: Results, score_name: Callable[[str], str]) -> Section:
    """Recovery against overlap, and the number of solved seeds."""
    rows = []
    for result in found.values():
        config = result["config"]
        values = scores(result, score_name(config["objective"]))
        rows.append(
            (
                config["interaction"],
                f"{config['overlap']:.0%}",
                LABELS[config["objective"]],
                f"{config['weight']:g}",
                str(config["steps"]),
                mean_estimate(values).text(3),
                f"{(values > SOLVED).sum()}/{len(values)}",
                mean_estimate(scores(result, "recovery")).text(3),
                mean_estimate(scores(result, "regrouped_recovery")).text(3),
                f"{scores(result, 'unexplained').mean():.3f}",
                f"{result['cpu_seconds']:.0f}",
            )
        )
    header = (
        *("shared outputs", "overlap", "criterion", "weight", "steps", "recovery", f"solved (> {SOLVED})"),
        *("blocks as trained", "blocks regrouped", "unexplained variance", "CPU s"),
    )
    text = (
        "Recovery: R^2 of true factors from matched estimated factors, minus that from the best unmatched "
        "one. Mean over seeds [95 % t interval]. The column takes blocks as trained for criteria that know "
        "them. For criteria on coordinates it takes blocks read off the support graph. Both readings follow."
    )
    picture = Figures(((recovery_figure(found, score_name), "Recovery against overlap"),), is_wide=True)
    return Section("Recovery against overlap", (Text(text), Table(header, tuple(rows)), picture))


@styled
def recovery_figure(found: Results, score_name: Callable[[str], str]) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    axis = figure.subplots()
    for number, (objective, label) in enumerate(list(LABELS.items())[:5]):
        chosen = _additive(found, objective)
        overlaps = 100 * np.array([result["config"]["overlap"] for result in chosen])
        # Criteria are offset horizontally, so that their points do not overlap.
        shifted = overlaps + 0.5 * (number - 1.5)
        values = [scores(result, score_name(objective)) for result in chosen]
        if len(values):
            axis.plot(shifted, [v.mean() for v in values], label=label, color=PALETTE[number])
        for place, points in zip(shifted, values, strict=True):
            axis.scatter([place] * len(points), points, s=16, alpha=0.6, color=PALETTE[number], linewidths=0)
    axis.set(xlabel="overlap of supports, %", ylabel="recovery (points: seeds)", ylim=(-0.05, 1.05))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def gap_section(gaps: list[dict[str, Any]]) -> Section:
    """Criteria at the true generator, in the true and in a rotated basis."""
    names = ("contrast", "sparse_volume", "sparse_coordinates", "hessian_across", "private_share")
    counts = ("nonzeros", "components", "components_any_basis")
    rows = tuple(
        (
            gap["interaction"] if gap["overlap"] else "none shared",
            f"{gap['overlap']:.0%}",
            *(
                f"{np.mean(gap[f'true_{name}']):.3g} / {np.mean(gap[f'mixed_{name}']):.3g}"
                for name in (*names, *counts)
            ),
        )
        for gap in gaps
    )
    header = ("shared outputs", "overlap", *names, *counts)
    text = (
        "True basis / randomly rotated basis, mean over 5 generators and 64 points. A criterion can single "
        "out the factors only where the first number beats the second. Components: exact zeros, edges united "
        "over the points. Any basis: the row matroid, at the point with the fewest."
    )
    return Section("The gap that each criterion uses", (Text(text), Table(header, rows)))


def selection_section(found: Results, score_name: Callable[[str], str]) -> Section:
    """Which unsupervised number selects the best run among the seeds of a cell?"""
    rows = []
    for result in found.values():
        config, last = result["config"], result["trace"][-1]
        values = scores(result, score_name(config["objective"]))
        rules = {
            "count": np.array([components(merges).sum() for merges in last[merge_name(config["objective"])]]),
            "contrast": -np.array(last["contrast"]),
            "sparse": -np.array(last["sparse_coordinates"]),
            "error": -np.array(last["unexplained"]),
        }
        picked = [f"{values[rule == rule.max()].mean():.3f}" for rule in rules.values()]
        name = f"{config['interaction']} {config['overlap']:.0%}, {config['steps']} steps"
        bounds = (f"{values.mean():.3f}", f"{values.max():.3f}")
        rows.append((name, LABELS[config["objective"]], *bounds, *picked))
    header = (
        *("cell", "criterion", "mean", "best", "by component count"),
        *("by contrast", "by sparse volume", "by reconstruction"),
    )
    text = (
        "Recovery of the seed that a rule picks. Ties are averaged. Component count: components of the graph "
        f"of the three blocks, summed over the least edge weights {WEIGHTS}."
    )
    return Section("Component count as a selection rule", (Text(text), Table(header, tuple(rows))))


def merge_name(objective: str) -> str:
    """Merge weights of the blocks that the criterion's recovery is scored on."""
    return "regrouped_block_merges" if objective.endswith("coordinates") else "block_merges"


def components(merges: list[float]) -> np.ndarray:
    """Components at each of WEIGHTS, for a graph with these merge weights."""
    return np.array([len(merges) + 1 - (np.array(merges) > weight).sum() for weight in WEIGHTS])


def stopping_section(found: Results, score_name: Callable[[str], str]) -> Section:
    """Stop once the component counts are unchanged for two evaluations in a row."""
    rows = []
    for result in found.values():
        config, trace = result["config"], result["trace"]
        name = score_name(config["objective"])
        merges = merge_name(config["objective"])
        stops = [stopping_index(trace, seed, merges) for seed in range(config["num_seeds"])]
        steps = np.array([trace[stop]["step"] for stop in stops])
        lost = np.array([trace[-1][name][seed] - trace[stop][name][seed] for seed, stop in enumerate(stops)])
        cell = f"{config['interaction']} {config['overlap']:.0%}, {config['steps']} steps"
        row = (f"{steps.mean():.0f} of {config['steps']}", f"{lost.mean():+.3f}", f"{lost.max():+.3f}")
        rows.append((cell, LABELS[config["objective"]], *row))
    header = ("cell", "criterion", "mean step of stopping", "recovery gained after it, mean", "most")
    text = (
        "Training would stop when the component counts at all least edge weights agree in three evaluations "
        "in a row. The learning rate was not shortened to the stop, so the gain includes its decay."
    )
    caption = "During training: recovery and components under D (lines) and S (dashes)"
    picture = Figures(((_traces(found, score_name), caption),), is_wide=True)
    return Section("Component count as a stopping signal", (Text(text), Table(header, tuple(rows)), picture))


def stopping_index(trace: list[dict[str, Any]], seed: int, name: str = "block_merges") -> int:
    counts = [components(entry[name][seed]) for entry in trace]
    for index in range(2, len(counts)):
        if (counts[index] == counts[index - 1]).all() and (counts[index] == counts[index - 2]).all():
            return index
    return len(counts) - 1


@styled
def _traces(found: Results, score_name: Callable[[str], str]) -> Figure:
    """Recovery and component count over training, for the two criteria of the comparison."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for objective, line in (("contrast", "-"), ("sparse_coordinates", "--")):
        for number, result in enumerate(_additive(found, objective)):
            trace, style = result["trace"], {"color": PALETTE[number], "linestyle": line}
            steps = [entry["step"] for entry in trace]
            recovery = [np.mean(entry[score_name(objective)]) for entry in trace]
            label = f"{LABELS[objective][0]}, {result['config']['overlap']:.0%} overlap"
            left.plot(steps, recovery, label=label, **style)
            merges = [entry[merge_name(objective)] for entry in trace]
            counts = [np.mean([components(one).mean() for one in entry]) for entry in merges]
            right.plot(steps, counts, **style)
    left.set(xlabel="step", ylabel="recovery, mean over seeds", ylim=(0, 1.03))
    right.set(xlabel="step", ylabel="components, mean over weights", ylim=(0.9, 3.1))
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    return figure


def _additive(found: Results, objective: str) -> list[dict[str, Any]]:
    """Cells of one criterion with additive shared outputs and the usual training length, by overlap."""
    wanted = (objective, "additive", CellConfig.steps)
    configs = [(result["config"], result) for result in found.values()]
    chosen = [r for c, r in configs if (c["objective"], c["interaction"], c["steps"]) == wanted]
    return sorted(chosen, key=lambda result: result["config"]["overlap"])
