"""The page of the action-sensitivity report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldmodel.evaluation.rollouts.page import actions_line
from worldmodel.evaluation.rollouts.results import means_by_name
from worldmodel.evaluation.sensitivity.verdict import RULE, Following, Record, responses, scale_errors
from worldmodel.files import write_text
from worldmodel.report.figures import draw_bars
from worldmodel.report.intervals import Estimate
from worldmodel.report.page import Figures, Page, Section, Table, Text, Verdict, write_pages

MOVES = (
    "Which dimension moves what: change of the video with that one raised, mean over all frames of a clip, "
    "dark where it is strong. One scale, the twelve strongest; the number is the mean over the picture."
)


def write_sensitivity_page(
    following: Following,
    records: Sequence[Record],
    settings: Mapping[str, Any],
    output: Path,
    title: str,
    *,
    action_spaces: Mapping[str, str],
    trained_on: str = "",  # sentence on whether these episodes were trained on
) -> dict[str, Any]:
    """Write sensitivity.json, report.md and report.html; returns the content of the JSON."""
    results = {
        **_results(following, records, settings),
        "action_spaces": dict(action_spaces),
        "trained_on": trained_on,
    }
    write_text(output / "sensitivity.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    verdict = Verdict(following.title, following.reasons, following.is_followed)
    sections = [
        Section("Verdict", (verdict, Text(RULE))),
        Section("The same first frame, other actions", (_check_table(following),)),
        Section("Response of each action dimension", tuple(_response_blocks(records, settings, output))),
        Section("Drift", (_drift_table(records),)),
    ]
    if any(record["recovered"] for record in records):
        sections.append(Section("Actions recovered from the video", (_recovered_table(records),)))
    sheets = sorted(output.glob("sheet*.png"))
    if sheets:
        items = tuple((path, "The same first frame and noise under different actions.") for path in sheets)
        sections.append(Section("Pictures", (Figures(items, is_wide=True),)))
    moving = sum(record["moves"] for record in records)
    lead = f"{len(records)} clips, something moves in {moving} of them; model {settings['model']}. "
    lead += " ".join(filter(None, (trained_on, actions_line(results))))
    if settings["action_gain"] != 1:
        lead += f" Every command reached the model multiplied by {settings['action_gain']:g}."
    write_pages(Page(title, lead, tuple(sections)), output)
    return results


def _results(following: Following, records: Sequence[Record], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "verdict": following.title,
        "is_followed": following.is_followed,
        "reasons": list(following.reasons),
        "rule": RULE,
        "settings": dict(settings),
        "clips": len(records),
        "checks": {
            check.control: {
                "is_passed": check.is_passed,
                **{name: getattr(check, name).to_dict() for name in ("wins", "error_ratio", "change")},
            }
            for check in following.checks
        },
        "best_scale": following.best_scale,
        "scale_error": {str(scale): e.to_dict() for scale, e in scale_errors(records).items()},
        "response": {name: e.to_dict() for name, e in responses(records).items()},
        "drift": {name: e.to_dict() for name, e in _last_drift(records).items()},
        "recovered": {name: e.to_dict() for name, e in means_by_name(records, "recovered").items()},
    }


def _check_table(following: Following) -> Table:
    rows = tuple(
        (
            check.control.replace("_", " "),
            f"{check.wins.percent()} of {check.wins.count}",
            check.error_ratio.text(3),
            check.change.text(4),
            "yes" if check.is_passed else "no",
        )
        for check in following.checks
    )
    header = (
        "control",
        "episodes won by true actions",
        "error, true / control",
        "change of the video",
        "passed",
    )
    note = "Error: mean squared error to the true video. Change: mean absolute difference of the two videos."
    return Table(header, rows, note=note)


def _response_blocks(
    records: Sequence[Record], settings: Mapping[str, Any], output: Path
) -> list[Text | Figures | Table]:
    found = responses(records)
    if not found:
        return [Text("Not measured.")]
    draw_bars(output / "response.png", found, "mean |change of the video|")
    caption = (
        f"Each dimension by itself raised by {settings['nudge']:g} half ranges; bars are means over clips."
    )
    scales = scale_errors(records)
    rows = tuple((f"x {scale:g}", estimate.text(5)) for scale, estimate in scales.items())
    table = Table(("actions", "MSE to the true video"), rows, title="True actions, scaled", strong=("x 1",))
    maps = tuple((path, MOVES) for path in sorted(output.glob("moves*.png")))
    return [Figures(((output / "response.png", caption), *maps), is_wide=True), table]


def _drift_table(records: Sequence[Record]) -> Table:
    found = _last_drift(records)
    names = [name for name in ("truth", "true", "hold", "zero", "null") if name in found]
    rows = tuple((name, found[name].text(4)) for name in names)
    note = (
        "Mean absolute difference of the last frame from the last given one. A robot told to hold should not "
        "move; zero is the middle of every range, which absolute commands reach by moving there."
    )
    return Table(("video", "moved at the end"), rows, note=note)


def _recovered_table(records: Sequence[Record]) -> Table:
    rows = tuple(
        (name.replace("_", " "), e.text(3)) for name, e in means_by_name(records, "recovered").items()
    )
    note = (
        "Distance (root mean square, half ranges) between the action that the inverse dynamics model sees in "
        "a video and the action that this video was made under; on the true video: the judge's own error."
    )
    return Table(("video", "action error"), rows, note=note, strong=("true",))


def _last_drift(records: Sequence[Record]) -> dict[str, Estimate]:
    last = [
        {**record, "last": {name: curve[-1] for name, curve in record["drift"].items()}} for record in records
    ]
    return means_by_name(last, "last")
