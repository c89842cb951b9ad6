"""The page of `table2.py`: our results, the effect of MCL, and the published table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.table2.cells import ROWS
from studies.table2.results import EFFECT_METRICS
from worldmodel.evaluation.rollouts.page import (
    COLUMNS,
    GAP_TITLES,
    METRIC_NOTE,
    ROW_TITLES,
    actions_line,
    row_title,
)
from worldmodel.evaluation.rollouts.results import STATIC
from worldmodel.files import write_text
from worldmodel.report.figures import PointPanel, draw_points
from worldmodel.report.intervals import estimate_of
from worldmodel.report.page import Block, Figures, Page, Section, Table, Text, Verdict, write_pages

SOURCE = "Factored Generative Models through Mechanism Diversity"
# Table 2 of SOURCE: RoboTwin, Wan 1.4B, other cameras and scenes; SSIM, PSNR, MSE, SSIM of the last frame.
PAPER_TABLE_2 = {
    "acg": {"target": (0.763, 18.61, 0.0138, 0.735), "transfer": (0.763, 18.45, 0.0143, 0.732)},
    "acg_mcl": {"target": (0.765, 18.73, 0.0134, 0.737), "transfer": (0.765, 18.58, 0.0138, 0.739)},
    "lacg": {"target": (0.769, 18.98, 0.0127, 0.744), "transfer": (0.782, 19.31, 0.0117, 0.752)},
    "lacg_mcl": {"target": (0.772, 18.99, 0.0125, 0.749), "transfer": (0.784, 19.33, 0.0115, 0.758)},
}
DRIVES = (
    "What drives the videos: in LACG rows latent actions, which are inferred from the true future video. In "
    "ACG and LACG+controller rows the recorded robot actions."
)
KL_BITS = (
    "Bits of these latent actions in one transition, by the KL divergence of the IDM's posterior from a "
    "standard normal, in validation: {}. Interval over seeds."
)
PAPER_COLUMNS = {"SSIM": 3, "PSNR dB": 2, "MSE": 4, "SSIM, last frame": 3}  # title -> digits
TASK_TITLES = {"target": "target task", "transfer": "transfer task, never trained with this robot"}
PANELS = {"clip_psnr": "PSNR dB of clips", "moving_clip_psnr": "PSNR dB of clips, moving"}
POSITIONS = {
    "action_error": ("action error, half ranges", 3),
    "gripper_error": ("end-effector error, px", 2),
    "object_in_place": ("carried object in place", 2),
}
MEASURED = {name: one for name, one in {**COLUMNS, **POSITIONS}.items() if name in EFFECT_METRICS}


def write_table(results: Mapping[str, Any], output: Path) -> Path:
    """Write table2.json, table2.png, table2.md and table2.html."""
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "table2.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    figure = output / "table2.png"
    draw_points(figure, _panels(results))
    seeds = max(len(row["seeds"]) for task in results["tasks"].values() for row in task["rows"].values())
    episodes = ", ".join(f"{task}: {found['episodes']}" for task, found in results["tasks"].items())
    lead = f"Held-out episodes of each task: {episodes}. Fine-tuning seeds a row: up to {seeds}. "
    lead += actions_line(results)
    caption = "95 % intervals: wide bars over episodes, thin ones over seeds. Dotted: the static frame."
    sections = [
        Section("At a glance", (Figures(((figure, caption),), is_wide=True), Text(_drives(results)))),
        *(Section(title, tuple(_task_blocks(results["tasks"][task]))) for task, title in _present(results)),
        Section("What MCL does", tuple(_mcl_blocks(results))),
        Section("The published Table 2", (_paper_table(),)),
    ]
    return write_pages(Page("Table 2", lead, tuple(sections)), output, "table2")


def _drives(results: Mapping[str, Any]) -> str:
    bits = {ROWS[name].title: estimate_of(value) for name, value in results.get("kl_bits", {}).items()}
    if not bits:
        return DRIVES
    shares = ", ".join(f"{title} {value.text(1)}" for title, value in bits.items())
    return f"{DRIVES} {KL_BITS.format(shares)}"


def _present(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(task, f"Ours, {title}") for task, title in TASK_TITLES.items() if task in results["tasks"]]


def _panels(results: Mapping[str, Any]) -> list[PointPanel]:
    return [
        PointPanel(
            f"{title}, {task}",
            estimate_of(found["floors"][STATIC][metric]["episodes"]).mean,
            {
                row["title"]: [estimate_of(row[metric][over]) for over in ("episodes", "seeds")]
                for row in found["rows"].values()
            },
        )
        for task, found in results["tasks"].items()
        for metric, title in PANELS.items()
    ]


def _task_blocks(found: Mapping[str, Any]) -> list[Block]:
    return [
        _scores(found, "episodes", "95 % intervals over episodes, seeds averaged first. " + METRIC_NOTE),
        _scores(found, "seeds", "95 % intervals over fine-tuning seeds, episodes averaged first."),
        _gaps(found),
        _wins(found),
    ]


def _scores(found: Mapping[str, Any], over: str, note: str) -> Table:
    columns = MEASURED
    named = {ROW_TITLES[name]: values for name, values in found["floors"].items() if over == "episodes"}
    named |= {f"{row['title']} ({_count(len(row['seeds']), 'seed')})": row for row in found["rows"].values()}
    rows = tuple(
        (name, *(estimate_of(values[metric][over]).text(digits) for metric, (_, digits) in columns.items()))
        for name, values in named.items()
    )
    header = ("row", *(title for title, _ in columns.values()))
    return Table(header, rows, title=f"Intervals over {over}", note=note)


def _gaps(found: Mapping[str, Any]) -> Table:
    rows = []
    for row in found["rows"].values():
        for over in ("episodes", "seeds"):
            shares = (estimate_of(row["gap_closed"][metric][over]).percent() for metric in GAP_TITLES)
            ratio = estimate_of(row.get("gripper_error_to_no_action")) if over == "episodes" else None
            rows.append((f"{row['title']}, over {over}", *shares, "" if ratio is None else ratio.text(2)))
    return Table(
        ("row", *GAP_TITLES.values(), "end-effector error / no action"),
        tuple(rows),
        title="Share of the way from the static frame to the autoencoder's ceiling",
        note="Of means over episodes. Intervals over episodes are bootstrapped, over seeds t intervals.",
    )


def _wins(found: Mapping[str, Any]) -> Table:
    controls = dict.fromkeys(name for row in found["rows"].values() for name in row["wins"])
    rows = tuple(
        (
            row["title"],
            *(estimate_of(row["wins"].get(name, {}).get("moving_clip_psnr")).percent() for name in controls),
        )
        for row in found["rows"].values()
    )
    return Table(
        ("row", *(row_title(name) for name in controls)),
        rows,
        title="Episodes in which true actions score better (PSNR of moving pixels)",
        note="Shares and 95 % Wilson intervals of each seed, averaged. A tie is no win.",
    )


def _mcl_blocks(results: Mapping[str, Any]) -> list[Block]:
    columns = MEASURED
    rows, verdicts = [], []
    for regime, tasks in results["mcl"].items():
        for task, metrics in tasks.items():
            for over in ("episodes", "seeds"):
                rows.append(
                    (
                        f"{regime}, {task}, over {over}",
                        *(estimate_of(metrics[m][over]).text(max(3, d)) for m, (_, d) in columns.items()),
                    )
                )
            verdicts.append(_mcl_verdict(regime, task, metrics["moving_psnr"]))
    if not rows:
        return [Text("No pair of rows with and without MCL is finished yet.")]
    header = ("with MCL minus without", *(title for title, _ in columns.values()))
    note = (
        "Paired by seed and episode. The two models of a pair start from the same weights and see the same "
        "data in the same order. They are rolled out from the same noise."
    )
    return [*verdicts, Table(header, tuple(rows), note=note)]


def _mcl_verdict(regime: str, task: str, effect: Mapping[str, Any]) -> Verdict:
    """The effect in words; it counts only if both intervals exclude zero on the same side."""
    ends = [estimate_of(effect[over]) for over in ("episodes", "seeds")]
    gains, losses = all(e.low > 0 for e in ends), all(e.high < 0 for e in ends)
    word = "helps" if gains else "harms" if losses else "makes no difference that these runs can show"
    reasons = tuple(
        f"PSNR of moving pixels: {e.text(3)} dB over {_count(e.count, noun)}"
        for e, noun in zip(ends, ("episode", "seed"), strict=True)
    )
    return Verdict(
        f"{regime}, {task} task: MCL {word}.", reasons, True if gains else False if losses else None
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _paper_table() -> Table:
    rows = tuple(
        (
            f"{ROWS[name].title} (paper)",
            *(
                f"{value:.{digits}f}"
                for task in TASK_TITLES
                for digits, value in zip(PAPER_COLUMNS.values(), tasks[task], strict=True)
            ),
        )
        for name, tasks in PAPER_TABLE_2.items()
    )
    header = ("row", *(f"{title}, {task}" for task in TASK_TITLES for title in PAPER_COLUMNS))
    note = (
        f"Quoted from '{SOURCE}', not run by us: RoboTwin scenes, Wan 1.4B, no intervals given. Other "
        "pictures have other levels of PSNR and SSIM. Only the order of rows can be compared with ours. The "
        "published PSNR is that of the MSE, as our PSNR of clips."
    )
    return Table(header, rows, note=note)
