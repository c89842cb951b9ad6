"""Records of clips -> means over episodes with intervals, horizon curves, wins and shares of the gap.

A record holds, per row (floors, true actions, controls), every metric of every generated frame. Frames are
averaged within a clip, clips within an episode, and intervals are over episodes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from worldmodel.evaluation.metrics.video import LEAST_ERROR, METRICS
from worldmodel.report.intervals import (
    NOTHING,
    Estimate,
    gap_closed,
    mean_estimate,
    ratio_estimate,
    share_estimate,
    win_estimate,
)

STATIC, NEAREST, CEILING, TRUE = "static", "nearest", "autoencoder", "true"
# PSNR of a whole clip, from its mean squared error: a mean over frames is dominated by frames in which
# nothing has moved yet, which a static frame matches exactly. Shares of the gap and wins are based on these.
CLIP_PSNR = {"clip_psnr": "mse", "moving_clip_psnr": "moving_mse"}
GAP_METRICS = ("clip_psnr", "mse", "moving_clip_psnr", "moving_mse")
HIGHER_IS_BETTER = {
    "psnr": True,
    "ssim": True,
    "mse": False,
    "ssim_last": True,  # of the last frame
    "moving_psnr": True,
    "moving_mse": False,
    "edges_moving": True,  # up to 1, the sharpness of the truth
    **dict.fromkeys(CLIP_PSNR, True),
}
SUMMARY_METRICS = tuple(HIGHER_IS_BETTER)
LPIPS = "lpips"  # measured where its weights are given
Record = Mapping[str, Any]


def row_names(records: Sequence[Record]) -> list[str]:
    """All rows of all records: floors and true actions first, then controls in order of appearance."""
    found = dict.fromkeys(name for record in records for name in record["rows"])
    first = [name for name in (STATIC, NEAREST, CEILING, TRUE) if name in found]
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
        mean_estimate(
            episode_means(
                records, [curve[frame] if curve and frame < len(curve) else None for curve in curves]
            )
        )
        for frame in range(length)
    ]


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """Everything a report needs, as JSON values; estimates are {mean, low, high, count}."""
    rows = row_names(records)
    controls = [name for name in rows if name not in (CEILING, TRUE)]
    return {
        "episodes": len({record["uid"] for record in records}),
        "clips": len(records),
        "rows": _row_means(records, rows),
        "gap_closed": {metric: _gap(records, metric) for metric in GAP_METRICS},
        "wins": {
            control: {metric: wins(records, control, metric).to_dict() for metric in CLIP_PSNR}
            for control in controls
        },
        "horizon": {
            row: {metric: [e.to_dict() for e in horizon(records, row, metric)] for metric in METRICS}
            for row in rows
        },
        "above_static": {metric: above_static(records, metric) for metric in ("mse", "moving_mse")},
        **{
            field: {name: e.to_dict() for name, e in means_by_name(records, field).items()}
            for field in ("action_error", "gripper_error", "gripper_error_end")
        },
        **_object_summary(records),
        "views": {name: _row_means(part, rows) for name, part in by_view(records).items()},
    }


def by_view(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Group the scores by camera, for models whose picture shows several cameras."""
    names = dict.fromkeys(name for record in records for name in record.get("views", {}))
    return {
        name: [
            {**record, "rows": record["views"][name]} for record in records if name in record.get("views", {})
        ]
        for name in names
    }


def _row_means(records: Sequence[Record], rows: Sequence[str]) -> dict[str, Any]:
    has_lpips = any(LPIPS in curves for record in records for curves in record["rows"].values())
    metrics = (*SUMMARY_METRICS, LPIPS) if has_lpips else SUMMARY_METRICS
    return {
        row: {metric: mean_estimate(episode_scores(records, row, metric)).to_dict() for metric in metrics}
        for row in rows
    }


def above_static(records: Sequence[Record], metric: str) -> dict[str, Any]:
    """Whether true actions beat the static frame at every generated frame, and the smallest margin.

    By the error's mean over episodes, not by each clip's dB, because a frame in which nothing has moved yet
    counts 100 dB. `frame` 1 is the first generated one, `ratio` its error over that of the static frame.
    """
    columns = [
        [record["rows"].get(row, {}).get(metric) or () for record in records] for row in (TRUE, STATIC)
    ]
    ratios: dict[int, Estimate] = {}
    for frame in range(max(map(len, columns[0]), default=0)):
        made, static = (
            episode_means(records, [curve[frame] if frame < len(curve) else None for curve in column])
            for column in columns
        )
        if np.nansum(static) > 0:  # else nothing has moved in any clip
            ratios[frame + 1] = ratio_estimate(made, static)
    if not ratios:
        return {"every_frame": None, "frame": None, "ratio": NOTHING.to_dict()}
    worst = max(ratios, key=lambda frame: ratios[frame].mean)
    return {"every_frame": ratios[worst].mean < 1, "frame": worst, "ratio": ratios[worst].to_dict()}


def wins(records: Sequence[Record], control: str, metric: str) -> Estimate:
    """The share of episodes in which the true actions score better than the control."""
    return win_estimate(
        episode_scores(records, TRUE, metric),
        episode_scores(records, control, metric),
        higher_is_better=HIGHER_IS_BETTER[metric],
    )


def means_by_name(records: Sequence[Record], field: str) -> dict[str, Estimate]:
    """Means over episodes of a field that holds one number per name; a record may lack it or a name."""
    names = dict.fromkeys(name for record in records for name in record.get(field, {}))
    return {
        name: mean_estimate(episode_means(records, [record.get(field, {}).get(name) for record in records]))
        for name in names
    }


def by_group(records: Sequence[Record], key: str) -> dict[str, list[Record]]:
    """Records of each task, embodiment, ..."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    return groups


def _gap(records: Sequence[Record], metric: str) -> dict[str, Any]:
    """The share of the gap, or why there is none."""
    floor, made, ceiling = (episode_scores(records, row, metric) for row in (STATIC, TRUE, CEILING))
    share = gap_closed(floor, made, ceiling, higher_is_better=HIGHER_IS_BETTER[metric])
    if share.count or np.isnan([floor, made, ceiling]).any(0).all():
        return share.to_dict()
    ends = (mean_estimate(values).text(4).partition(" [")[0] for values in (floor, ceiling))
    reason = "the static frame ({}) is no worse than the autoencoder ({}): nothing to gain".format(*ends)
    return {**share.to_dict(), "reason": reason}


def _clip_score(record: Record, row: str, metric: str) -> float | None:
    curves = record["rows"].get(row)
    if curves is None:
        return None
    if metric == "ssim_last":
        return curves["ssim"][-1]
    known = [value for value in curves.get(CLIP_PSNR.get(metric, metric), ()) if value is not None]
    if not known:
        return None
    mean = float(np.mean(known))
    return -10 * math.log10(max(mean, LEAST_ERROR)) if metric in CLIP_PSNR else mean


def _object_summary(records: Sequence[Record]) -> dict[str, Any]:
    """How often the object is moved, and for those clips: its predicted position at the end."""
    judged = [record["object"] for record in records if record.get("object")]
    names = dict.fromkeys(name for one in judged for name in one["in_place"])
    carried = [one for one in judged if one["moved"]]
    distances = {name: [one["distance"][name] for one in carried] for name in names}
    return {
        "object_carried": share_estimate(len(carried), len(judged)).to_dict(),
        "object": {
            name: share_estimate(sum(one["in_place"][name] for one in carried), len(carried)).to_dict()
            for name in names
        },
        "object_distance": {
            name: mean_estimate([value for value in values if value is not None]).to_dict()
            for name, values in distances.items()
        },
    }
