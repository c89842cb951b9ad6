"""The parts of docs/results/picture_head.md that no command of the package has.

python eval/study.py picture_head base FOLDER                    the shipped model without its compositor
python eval/study.py picture_head ghosts MODEL FILE DATA...      which clips keep what was taken away
python eval/study.py picture_head table EVAL                     all rows of rollouts in EVAL, as Markdown
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.cli_errors import one_way_out
from worldmodel.evaluation.command_line import open_for_model
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.predictors import ModelPredictor, predict_each
from worldmodel.evaluation.rollouts.results import TRUE, episode_scores
from worldmodel.files import write_json
from worldmodel.models.model import WorldModel
from worldmodel.report.intervals import mean_estimate

EPISODES, FRAMES = 14, 57  # of each dataset; a clip is a whole short episode
FAR, NEAR, LEAST_PIXELS, GHOST = 60 / 255, 12 / 255, 15, 0.3
LAST_SECOND = 8  # frames


def ghost_share(
    first: Float[Tensor, "3 H W"],
    truth: Float[Tensor, "3 H W"],
    made: Float[Tensor, "3 H W"],
    table: Float[Tensor, "3"],
) -> float | None:
    """How much of what stood in the first frame is still drawn where the table is bare at the end.

    Least squares of what was made over what stood there, both as differences from the colour of the table.
    None if too few pixels are known to have become bare.
    """
    stood, left, drawn = (frame - table[:, None, None] for frame in (first, truth, made))
    bare = (stood.abs().amax(0) > FAR) & (left.abs().amax(0) < NEAR)
    if bare.sum() < LEAST_PIXELS:
        return None
    return float((drawn * stood)[:, bare].sum() / stood[:, bare].square().sum())


def ghosts(folder: str, datasets: Sequence[str]) -> list[dict[str, Any]]:
    """The share of every clip that says something."""
    model, found = WorldModel.from_pretrained(folder).eval(), []
    predictor = ModelPredictor(model, 1)
    config = HeldOutConfig("all", episodes=EPISODES, num_frames=FRAMES)
    for data in datasets:
        clips = held_out_clips(open_for_model(folder, data), model.contract, model.normalizer, config)
        for number in range(len(clips)):
            clip = clips[number]
            commands = {TRUE: predictor.commands(clip)}
            made = predict_each(predictor, clip, commands, num_given=1, seed=number, max_batch=1)[TRUE]
            table = clip.frames[0].flatten(1).median(1).values
            share = ghost_share(clip.frames[0], clip.frames[-1], made[-1], table)
            if share is not None:
                found.append({"data": data, "uid": clip.uid, "share": round(share, 4)})
    return found


def bare_model(folder: Path) -> None:
    """The shipped model with its decoded frames: backbone and autoencoder as they are."""
    model = WorldModel.from_pretrained("desk")
    model.compositor = model.hand_references = None
    model.config = replace(model.config, compositor_width=0, hand_references=0, sharpen=0.0, trained="all")
    model.save_pretrained(folder)


def row(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of one rollout folder: means over episodes."""
    edges = [record["rows"][TRUE]["edges_moving"] for record in records]
    ends = [[_mean(one[:LAST_SECOND]), _mean(one[-LAST_SECOND:])] for one in edges]
    objects = [record["object"] for record in records if record.get("object")]
    kept = [float(one["in_place"][TRUE]) for one in objects]
    return {
        **{
            name: mean_estimate(episode_scores(records, TRUE, name)).mean
            for name in ("clip_psnr", "moving_clip_psnr", "edges_moving")
        },
        "gripper": _mean([record["gripper_error"].get(TRUE) for record in records]),
        "gripper_end": _mean([record["gripper_error_end"].get(TRUE) for record in records]),
        "kept": _mean(kept),
        "edges_last_over_first": _mean([last for _, last in ends]) / _mean([first for first, _ in ends]),
    }


def _mean(values: Sequence[float | None]) -> float:
    known = np.array([value for value in values if value is not None], float)
    return float(np.nanmean(known)) if len(known) else float("nan")


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """One part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("base").add_argument("folder", type=Path)
    ghost = parts.add_parser("ghosts")
    ghost.add_argument("model")
    ghost.add_argument("file", type=Path)
    ghost.add_argument("data", nargs="+")
    parts.add_parser("table").add_argument("folder", type=Path)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    if asked.part == "base":
        bare_model(asked.folder)
    elif asked.part == "ghosts":
        write_json(asked.file, ghosts(asked.model, asked.data))
    else:
        for file in sorted(asked.folder.glob("*/clips.jsonl")):
            numbers = row(list(read_records(file).values()))
            print(f"| {file.parent.name} |", " | ".join(f"{value:.3f}" for value in numbers.values()), "|")
    return 0
