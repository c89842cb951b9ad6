"""Records of clips -> means over episodes with intervals, horizon curves, wins and shares of the gap.

A record holds, per row (floors, true actions, controls), every metric of every generated frame. Frames are
averaged within a clip, clips within an episode, and intervals are over episodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from eval.estimates import Estimate, gap_closed, mean_estimate, share_estimate, win_estimate
from eval.video_metrics import HIGHER_IS_BETTER, METRICS

STATIC, CEILING, TRUE = "static", "autoencoder", "true"
SUMMARY_METRICS = ("psnr", "ssim", "mse", "ssim_last", "moving_psnr", "moving_mse")
Record = Mapping[str, Any]


def row_names(records: Sequence[Record]) -> list[str]:
    """All rows of all records: floors and true actions first, then controls as they come."""
    found = dict.fromkeys(name for record in records for name in record["rows"])
    first = [name for name in (STATIC, CEILING, TRUE) if name in found]
    return first + [name for name in found if name not in first]


def episode_means(
    records: Sequence[Record], values: Sequence[float | None]
) -> Float[np.ndarray, " episodes"]:
    """One number per clip -> one per episode, in order of first appearance; nan where there is none."""
    grouped: dict[str, list[float]] = {}
    for record, value in zip(records, values, strict=True):
        known = grouped.setdefault(record["uid"], [])
        if value is not None:
            known.append(value)
    return np.array([np.mean(known) if known else np.nan for known in grouped.values()])


def episode_scores(records: Sequence[Record], row: str, metric: str) -> Float[np.ndarray, " episodes"]:
    """A metric of a row, one number per episode."""
    return episode_means(records, [_clip_score(record, row, metric) for record in records])


def horizon(records: Sequence[Record], row: str, metric: str) -> list[Estimate]:
    """A metric of a row at every generated frame."""
    curves = [record["rows"].get(row, {}).get(metric) for record in records]
    length = max((len(curve) for curve in curves if curve), default=0)
    return [
        mean_estimate(episode_means(records, [curve[frame] if curve else None for curve in curves]))
        for frame in range(length)
    ]


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Everything a report needs, as JSON values; estimates are {mean, low, high, count}."""
    rows = row_names(records)
    controls = [name for name in rows if name not in (CEILING, TRUE)]
    return {
        "episodes": len({record["uid"] for record in records}),
        "clips": len(records),
        "rows": {
            row: {
                metric: mean_estimate(episode_scores(records, row, metric)).to_dict()
                for metric in SUMMARY_METRICS
            }
            for row in rows
        },
        "gap_closed": {
            metric: _gap(records, metric).to_dict() for metric in ("psnr", "mse", "moving_psnr", "moving_mse")
        },
        "wins": {
            control: {metric: wins(records, control, metric).to_dict() for metric in ("psnr", "moving_psnr")}
            for control in controls
        },
        "horizon": {
            row: {metric: [e.to_dict() for e in horizon(records, row, metric)] for metric in METRICS}
            for row in rows
        },
        "action_error": _means_by_row(records, "action_error"),
        "gripper_error": _means_by_row(records, "gripper_error"),
        "object": _object_summary(records),
    }


def wins(records: Sequence[Record], control: str, metric: str) -> Estimate:
    """In which share of episodes the true actions score better than the control."""
    return win_estimate(
        episode_scores(records, TRUE, metric),
        episode_scores(records, control, metric),
        higher_is_better=HIGHER_IS_BETTER[metric],
    )


def by_group(records: Sequence[Record], key: str) -> dict[str, list[Record]]:
    """Records of each task, embodiment, ..."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    return groups


def _gap(records: Sequence[Record], metric: str) -> Estimate:
    return gap_closed(*(episode_scores(records, row, metric) for row in (STATIC, TRUE, CEILING)))


def _clip_score(record: Record, row: str, metric: str) -> float | None:
    curves = record["rows"].get(row)
    if curves is None:
        return None
    if metric == "ssim_last":
        return curves["ssim"][-1]
    known = [value for value in curves[metric] if value is not None]
    return float(np.mean(known)) if known else None


def _means_by_row(records: Sequence[Record], field: str) -> dict[str, Any]:
    names = dict.fromkeys(name for record in records for name in record.get(field, {}))
    return {
        name: mean_estimate(
            episode_means(records, [record.get(field, {}).get(name) for record in records])
        ).to_dict()
        for name in names
    }


def _object_summary(records: Sequence[Record]) -> dict[str, Any]:
    """Of the clips in which the object is carried: in how many the prediction has it in place."""
    judged = [record["object"] for record in records if record.get("object")]
    names = dict.fromkeys(name for one in judged for name in one["in_place"])
    carried = [one for one in judged if one["moved"]]
    return {
        name: share_estimate(sum(one["in_place"][name] for one in carried), len(carried)).to_dict()
        for name in names
    }
