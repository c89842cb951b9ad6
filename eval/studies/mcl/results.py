"""The gain by MCL in each comparison, paired by seed, and the smallest effect that the study could detect."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from studies.cells_file import open_cells
from studies.mcl.cells import (
    PHASES,
    WITHOUT,
    Comparison,
    MclStudyConfig,
    arm_folder,
    arm_names,
    arms_of,
    comparisons,
)
from worldmodel.report.intervals import mean_estimate
from worldmodel.report.page import Page, Section, Table, Text, write_pages

METRICS = {
    "moving_psnr": "PSNR dB, moving",
    "psnr": "PSNR dB",
    "gripper": "gripper px",
    "over_hold": "over hold dB",
    "over_shuffled": "over shuffled dB",
}
POWER = 0.8  # power at which an effect counts as visible


def paired_gains(
    config: MclStudyConfig, comparison: Comparison, arm: str, task: str, metric: str
) -> list[float]:
    """Result with MCL minus without, for each seed that has both."""
    seeds = config.choose_seeds if comparison.phase == "choose" else config.confirm_seeds
    pairs = [
        [_mean(arm_folder(config, comparison, name, seed) / task, metric) for name in (arm, WITHOUT)]
        for seed in seeds
    ]
    return [after - before for after, before in pairs if after is not None and before is not None]


def _mean(report: Path, metric: str) -> float | None:
    path = report / "results.json"
    if not path.exists():
        return None
    results: Mapping[str, Any] = json.loads(path.read_text())
    rows = results["rows"]
    if metric == "gripper":
        return float(results["gripper_error"]["true"]["mean"]) if results.get("gripper_error") else None
    if metric.startswith("over_"):  # action sensitivity: gain of the true action over a wrong one
        wrong = rows.get(metric.removeprefix("over_"))
        true = rows["true"]["moving_psnr"]["mean"]
        return None if wrong is None else float(true - wrong["moving_psnr"]["mean"])
    return float(rows["true"][metric]["mean"])


def visible_effect(gains: list[float]) -> float:
    """The smallest true gain that a paired t test of this spread finds with 80 % power at the 5 % level."""
    if len(gains) < 2:
        return float("nan")
    count, spread = len(gains), float(np.std(gains, ddof=1))
    critical = stats.t.ppf(0.975, count - 1)
    # Two seeds need fifteen times their standard deviation, five need 1.7 times.
    candidates = np.linspace(0, 20 * spread, 2001)
    found = 1 - stats.nct.cdf(critical, count - 1, candidates / (spread / count**0.5 + 1e-300))
    return float(candidates[np.argmax(found >= POWER)]) if (found >= POWER).any() else float("inf")


def choose_arms(config: MclStudyConfig) -> dict[str, str]:
    """The arm of each regime with the highest mean gain in moving pixels on the first robot's target task."""
    best = {}
    for comparison in comparisons(config, "choose"):
        means = {
            arm: float(np.mean(gains))
            for arm in arm_names(config.arms)
            if (gains := paired_gains(config, comparison, arm, "target", "moving_psnr"))
        }
        if means:
            best[comparison.regime] = max(means, key=means.__getitem__)
    return best


def finished_cells(config: MclStudyConfig) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Every number in the tables, by comparison, arm, seed and task."""
    for phase in PHASES:
        seeds = config.choose_seeds if phase == "choose" else config.confirm_seeds
        for comparison in comparisons(config, phase):
            if phase == "confirm" and comparison.regime not in config.chosen:
                continue
            arms = [arm.name for arm in arms_of(config, comparison)]
            for arm, seed, task in itertools.product(arms, seeds, ("target", "transfer")):
                report = arm_folder(config, comparison, arm, seed) / task
                values = {name: _mean(report, name) for name in METRICS}
                if values["moving_psnr"] is not None:
                    yield f"{comparison.name}/{arm}/seed{seed}/{task}", values


def write_study(config: MclStudyConfig) -> Path:
    """Write OUTPUT/report.{md,html}, one table per phase, and their numbers to cells.jsonl."""
    cells = open_cells(Path(config.output), "mcl")
    for name, values in finished_cells(config):
        cells.add(name, values)
    sections = [Section(phase.capitalize(), (_table(config, phase), Text(NOTE))) for phase in PHASES]
    if p_values := confirmed(config):
        said = ", ".join(f"{name.partition('/')[2]} {value:.3f}" for name, value in p_values.items())
        sections.append(Section("Test", (Text(f"P values of the target task, corrected by Holm: {said}."),)))
    lead = "Gains are with MCL minus without, paired by seed, with 95 % t intervals over seeds."
    return write_pages(
        Page("Does MCL help the video follow the action?", lead, tuple(sections)), Path(config.output)
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p values: the smallest times n, the next times n - 1, and so on."""
    order = np.argsort(p_values)
    steps = [p_values[place] * (len(order) - rank) for rank, place in enumerate(order)]
    corrected = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(corrected[rank]) for rank in np.argsort(order)]


def confirmed(config: MclStudyConfig) -> dict[str, float]:
    """Comparison -> corrected p value of its gain in moving pixels on the target task."""
    gains = {}
    for comparison in comparisons(config, "confirm"):
        if arm := config.chosen.get(comparison.regime):
            values = paired_gains(config, comparison, arm, "target", "moving_psnr")
            if len(values) > 1:
                gains[comparison.name] = values
    p_values = [float(stats.ttest_1samp(values, 0).pvalue) for values in gains.values()]
    return dict(zip(gains, holm(p_values), strict=True))


def gradient_share(config: MclStudyConfig, comparison: Comparison, arm: str) -> str:
    """MCL's mean share of the backbone's gradient; empty if it was not measured."""
    files = arm_folder(config, comparison, arm, 0).parent.glob("seed*/trained/gradients.json")
    shares = [json.loads(file.read_text())["share"] for file in files]
    return f"{np.mean(shares):.2f}" if shares else ""


def _table(config: MclStudyConfig, phase: str) -> Table:
    header = ("comparison", "arm", "task", *METRICS.values(), "visible, moving dB", "MCL's gradient")
    rows = []
    for comparison in comparisons(config, phase):
        if phase == "confirm" and comparison.regime not in config.chosen:
            continue
        for arm in arm_names(arms_of(config, comparison)):
            rows += [
                _row(config, comparison, arm, task)
                for task in ("target", "transfer")
                if paired_gains(config, comparison, arm, task, "moving_psnr")
            ]
    return Table(header, tuple(rows))


def _row(config: MclStudyConfig, comparison: Comparison, arm: str, task: str) -> tuple[str, ...]:
    gains = {metric: paired_gains(config, comparison, arm, task, metric) for metric in METRICS}
    texts = (mean_estimate(values).text(3) if values else "" for values in gains.values())
    visible = f"{visible_effect(gains['moving_psnr']):.3f}"
    share = gradient_share(config, comparison, arm)
    return (comparison.name.partition("/")[2], arm, task, *texts, visible, share)


NOTE = (
    "Visible is the smallest true gain that this many seeds, with this spread, would show with a chance of "
    "80 %. A gain whose interval holds zero is no evidence for MCL, and none against gains below that size. "
    "MCL's gradient is its share of the backbone's at the end of training."
)
