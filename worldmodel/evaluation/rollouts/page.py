"""The report of `worldmodel rollout`: results.json, curves and the page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldmodel.data.action_spaces import describe_action_spaces
from worldmodel.evaluation.rollouts.contrast_curve import contrast_section
from worldmodel.evaluation.rollouts.results import (
    CEILING,
    CLIP_PSNR,
    LPIPS,
    NEAREST,
    STATIC,
    TRUE,
    Record,
    by_group,
    horizon,
    row_names,
    summarize,
)
from worldmodel.files import write_text
from worldmodel.report.figures import draw_curves
from worldmodel.report.intervals import estimate_of
from worldmodel.report.page import Figures, Page, Section, Table, Text, write_pages

COLUMNS = {  # metric -> (title, digits)
    "clip_psnr": ("PSNR dB, clips", 2),
    "psnr": ("PSNR dB, frames", 2),
    "ssim": ("SSIM", 4),
    "mse": ("MSE", 5),
    "ssim_last": ("SSIM, last", 4),
    "moving_psnr": ("PSNR dB, moving", 2),
    "edges_moving": ("edges", 3),
    LPIPS: ("LPIPS", 4),
}
GAP_TITLES = {
    "clip_psnr": "dB",
    "mse": "MSE",
    "moving_clip_psnr": "dB, moving",
    "moving_mse": "MSE, moving",
}
ROW_TITLES = {
    STATIC: "static frame (floor)",
    NEAREST: "nearest training frame (floor)",
    CEILING: "autoencoder (ceiling)",
    TRUE: "true actions",
    "direct": "direct predictor (baseline)",
}
PREDICTED = "predicted"  # what `score` calls the row of videos that it did not make
METRIC_NOTE = (
    "Generated frames only, RGB in [0, 1]; frames are averaged within an episode, intervals are 95 % t "
    "intervals over episodes. PSNR of clips is that of a clip's mean squared error, of frames the mean over "
    "frames: the latter flatters a static picture, which is exact (100 dB) until something moves. "
    "Moving pixels differ by more than 0.075 from the last given frame in the truth. Edges is the energy of "
    "their Laplacian over that of the truth: 1 is as sharp as the truth."
)


def write_rollout_page(
    results: Mapping[str, Any], records: Sequence[Record], shown: Sequence[int], output: Path, title: str
) -> Path:
    """Write results.json, curves.png, report.md and report.html."""
    write_text(output / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    panels = {
        metric: {row: horizon(records, row, metric) for row in row_names(records)}
        for metric in ("psnr", "moving_psnr", "ssim")
    }
    named = {COLUMNS[metric][0]: rows for metric, rows in panels.items()}
    draw_curves(output / "curves.png", named, records[0]["num_given"])
    lead = (
        f"{results['episodes']} episodes, {results['clips']} clips, regime {results['regime']}, "
        f"{results['settings']['num_inference_steps']} sampling steps, model {results['settings']['model']}. "
        + " ".join(filter(None, (results.get("trained_on"), actions_line(results))))
    )
    sections = [
        Section("Videos", tuple(video_blocks(records, shown, output))),
        Section("Quality", (quality_table(results["rows"]), _gap_table(results, records))),
        *_view_sections(results),
        Section("Do the actions matter?", tuple(_following_blocks(results))),
        Section("Along the horizon", tuple(horizon_blocks(results, output))),
        *contrast_section(results.get("contrast", []), output / "contrast.png"),
    ]
    return write_pages(Page(title, lead, tuple(sections)), output)


def actions_line(results: Mapping[str, Any]) -> str:
    """A line on the kind of the actions; empty for results of older versions, which do not store it."""
    spaces = results.get("action_spaces")
    return f"Actions: {describe_action_spaces(spaces.values())}." if spaces else ""


def row_title(name: str) -> str:
    """Display name of a row."""
    return PREDICTED if name == PREDICTED else ROW_TITLES.get(name, f"{name.replace('_', ' ')} actions")


def _view_sections(results: Mapping[str, Any]) -> list[Section]:
    """Quality of each camera separately, if the picture contains several."""
    tables = tuple(
        quality_table(rows, title=f"Camera {name}", note="This camera's part of the picture alone.")
        for name, rows in results.get("views", {}).items()
    )
    return [Section("Each camera", tables)] if tables else []


def quality_table(values_by_row: Mapping[str, Any], title: str = "", note: str = METRIC_NOTE) -> Table:
    """Every metric of every row, with its interval."""
    found = {metric for values in values_by_row.values() for metric in values}
    columns = {metric: column for metric, column in COLUMNS.items() if metric in found}
    rows = tuple(
        (
            row_title(row),
            *(estimate_of(values.get(metric)).text(digits) for metric, (_, digits) in columns.items()),
        )
        for row, values in values_by_row.items()
    )
    header = ("row", *(name for name, _ in columns.values()))
    return Table(header, rows, title=title, note=note, strong=(ROW_TITLES[TRUE], PREDICTED))


def _gap_table(results: Mapping[str, Any], records: Sequence[Record]) -> Table:
    groups = {"all": results["gap_closed"]}
    for key in ("task", "embodiment"):
        found = by_group(records, key)
        if len(found) > 1:
            groups |= {name or "unnamed": summarize(part)["gap_closed"] for name, part in found.items()}
    rows = tuple(
        (name, *(_share_text(gaps[metric]) for metric in GAP_TITLES)) for name, gaps in groups.items()
    )
    return Table(
        ("episodes", *GAP_TITLES.values()),
        rows,
        title="Share of the way from the static frame to the autoencoder's ceiling",
        note="On means over episodes; dB of the clip's mean squared error; 95 % bootstrap intervals."
        + "".join(_undefined_notes(groups)),
        strong=("all",),
    )


def _share_text(gap: Mapping[str, Any]) -> str:
    return "undefined" if gap.get("reason") else estimate_of(gap).percent()


def _undefined_notes(groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why a share is undefined, one sentence each."""
    return [
        f" {name}, {GAP_TITLES[metric]}: undefined, {gaps[metric]['reason']}."
        for name, gaps in groups.items()
        for metric in GAP_TITLES
        if gaps[metric].get("reason")
    ]


def horizon_blocks(
    results: Mapping[str, Any], output: Path, subject: str = "rollouts under true actions"
) -> list[Text | Figures]:
    """Whether the static frame is beaten at every frame, and the curves."""
    sentences = []
    for metric, name in (("mse", "mean squared error"), ("moving_mse", "error of moving pixels")):
        above = results["above_static"][metric]
        if above["frame"] is not None:
            verb = "beat" if above["every_frame"] else "do not beat"
            sentences.append(
                f"By {name}, {subject} {verb} the static frame at every generated frame; "
                f"the nearest to it is frame {above['frame']}, with "
                f"{estimate_of(above['ratio']).text(2)} times its error."
            )
    caption = "Mean over episodes at every frame; bands are 95 % intervals."
    return [*map(Text, sentences), Figures(((output / "curves.png", caption),), is_wide=True)]


def summary_text(results: Mapping[str, Any]) -> str:
    """Quality, wins and gap for a terminal; means only, the report has the intervals."""
    quality, wins = quality_table(results["rows"]), _wins_table(results)
    means = tuple(tuple(cell.partition(" [")[0] for cell in row) for row in quality.rows)
    gaps = {title: results["gap_closed"][metric] for metric, title in GAP_TITLES.items()}
    closed = ", ".join(
        f"{title} {_share_text(gap).partition(' [')[0]}"
        for title, gap in gaps.items()
        if gap["count"] or gap.get("reason")
    )
    reasons = dict.fromkeys(f"undefined: {gap['reason']}" for gap in gaps.values() if gap.get("reason"))
    return "\n".join(
        [
            *_aligned(quality.header, means),
            "",
            *_aligned((f"true actions {wins.header[0]}", *wins.header[1:]), wins.rows),
            "",
            *filter(None, (results.get("trained_on"),)),
            *reasons,
            f"way from static frame to ceiling: {closed}",
            actions_line(results),
        ]
    )


def _aligned(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def _wins_table(results: Mapping[str, Any]) -> Table:
    wins = tuple(
        (row_title(name), *(estimate_of(values[metric]).percent() for metric in CLIP_PSNR))
        for name, values in results["wins"].items()
    )
    return Table(
        ("better than", "by error", "by error of moving pixels"),
        wins,
        title="Episodes in which true actions score better",
        note="95 % Wilson intervals; a tie is no win.",
    )


def _following_blocks(results: Mapping[str, Any]) -> list[Table | Text]:
    blocks: list[Table | Text] = [_wins_table(results)]
    measured = {
        "action_error": "IDM-recovered action error (half ranges)",
        "gripper_error": "gripper error (pixels)",
        "gripper_error_end": "in the last second",
        "object": "carried object in place (share)",
        "object_distance": "its distance where found (px of 64)",
    }
    present = {field: name for field, name in measured.items() if results[field]}
    if not present:
        return [
            *blocks,
            Text("Neither an inverse dynamics model nor a locator was there to judge positions."),
        ]
    names = dict.fromkeys(row for field in present for row in results[field])
    rows = tuple(
        (
            "true video" if row == "truth" else row_title(row),
            *(estimate_of(results[field].get(row)).text(3) for field in present),
        )
        for row in names
    )
    note = "Distance of what the video shows from the recorded (true) actions, whatever drove the video."
    if results["object"]:
        carried = estimate_of(results["object_carried"])
        note += f" The object is carried in {carried.percent()} of {carried.count} clips that show it."
    return [*blocks, Table(("video of", *present.values()), rows, note=note, strong=(ROW_TITLES[TRUE],))]


def clip_caption(record: Record) -> str:
    """What a clip shows, and where it begins."""
    task = record["task"] or "task unnamed"
    return f"{task}, {record['embodiment']}: {record['uid']}, from frame {record['start']}"


def video_blocks(records: Sequence[Record], shown: Sequence[int], output: Path) -> list[Text | Figures]:
    """Side-by-side videos of the chosen clips, and how to read them."""
    items: list[tuple[Path, str]] = []
    for number in shown:
        caption = clip_caption(records[number])
        for suffix in (".mp4", ".png"):
            path = output / "videos" / f"clip{number:03d}{suffix}"
            if path.exists():
                items.append((path, caption))
    text = "Left to right: truth, prediction, their difference around gray."
    if any(path.suffix == ".png" for path, _ in items):
        text += (
            " Stills: paths of left gripper (blue), right gripper (orange) and object (green) over the last "
            "frame; solid in the truth, dashed in the prediction."
        )
    return [Text(text), Figures(tuple(items))]
