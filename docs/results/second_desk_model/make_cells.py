"""The page's numbers from reports of worldmodel rollout: python make_cells.py --row NAME FOLDER ... --row ...

Several folders with one name are seeds. An episode counts with its mean over them. Intervals are over
episodes.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.rollouts.results import TRUE, Record, episode_means, episode_scores, row_names
from worldmodel.files import write_text
from worldmodel.report.intervals import mean_estimate

HERE = Path(__file__).parent
METRICS = {
    "clip_psnr": "clip_psnr",
    "moving": "moving_clip_psnr",
    "edges": "edges_moving",
    "ssim": "ssim",
    "ssim_last": "ssim_last",
}
NEAR = 1.5  # px: the stricter of the two distances at which an object counts as found


def cells(name: str, folders: list[Path]) -> dict[str, dict[str, Any]]:
    """The numbers of each row of some reports, by name/row."""
    seeds = [list(read_records(folder / "clips.jsonl").values()) for folder in folders]
    return {f"{name}/{row}": cell(seeds, row) for row in row_names(seeds[0])}


def cell(seeds: Sequence[Sequence[Record]], row: str) -> dict[str, Any]:
    """Mean, low and high of every measure of a row."""
    answer: dict[str, Any] = {"episodes": len({record["uid"] for record in seeds[0]}), "seeds": len(seeds)}
    for name, metric in METRICS.items():
        answer[name] = interval([episode_scores(records, row, metric) for records in seeds])
    for name in ("gripper_error", "gripper_error_end"):
        found = [[record.get(name, {}).get(row) for record in records] for records in seeds]
        answer[name] = interval(
            [episode_means(records, values) for records, values in zip(seeds, found, strict=True)]
        )
    carried = [one for records in seeds for record in records if (one := record["object"]) and one["moved"]]
    distances = [one["distance"].get(row) for one in carried]
    answer["object_clips"] = len(carried) // len(seeds)
    for pixels in (3.0, NEAR):
        shares = [value is not None and value <= pixels for value in distances]
        answer[f"object_{pixels:g}px"] = round(float(np.mean(shares)), 3) if shares else None
    if row == TRUE:
        is_found = [one["in_place"]["truth"] for one in carried]
        answer["object_found_in_truth"] = round(float(np.mean(is_found)), 3) if is_found else None
    return answer


def interval(seeds: list[np.ndarray]) -> list[float]:
    """Mean and 95 % interval over episodes of the mean over seeds."""
    estimate = mean_estimate(np.mean(seeds, axis=0))
    return [round(value, 3) for value in (estimate.mean, estimate.low, estimate.high)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", nargs="+", action="append", required=True, metavar="NAME FOLDER")
    lines = [json.dumps({"settings": {"study": "second_desk_model"}})]
    for name, *folders in parser.parse_args().row:
        for key, record in cells(name, [Path(folder) for folder in folders]).items():
            lines.append(json.dumps({"key": key, "record": record}))
    write_text(HERE / "cells.jsonl", "\n".join(lines) + "\n")
