"""The parts of docs/results/picture_head.md that no command of the package has.

python eval/study.py picture_head base FOLDER                    the shipped model without its compositor
python eval/study.py picture_head ghosts MODEL FILE DATA...      which clips keep what was taken away
python eval/study.py picture_head collect EVAL FILE              rollouts and ghosts in EVAL, a line a clip
python eval/study.py picture_head table FILE                     their means, as Markdown
"""

import argparse
import json
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
from worldmodel.files import write_json, write_text
from worldmodel.models.model import WorldModel

EPISODES, FRAMES = 14, 57  # of each dataset; a clip is a whole short episode
FAR, NEAR, LEAST_PIXELS, GHOST = 60 / 255, 12 / 255, 15, 0.3
LAST_SECOND = 8  # frames
SCORES = ("clip_psnr", "moving_clip_psnr", "edges_moving")


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


def clip_numbers(record: Mapping[str, Any]) -> dict[str, float | None]:
    """What the page shows of one clip."""
    edges = record["rows"][TRUE]["edges_moving"]
    found = record.get("object") or {"in_place": {}}
    kept = found["in_place"].get(TRUE)
    scores = {name: float(episode_scores([record], TRUE, name)[0]) for name in SCORES}
    return {
        **{name: None if np.isnan(value) else round(value, 4) for name, value in scores.items()},
        "gripper": record["gripper_error"].get(TRUE),
        "gripper_end": record["gripper_error_end"].get(TRUE),
        "kept": None if kept is None else float(kept),
        "edges_first": _mean(edges[:LAST_SECOND]),
        "edges_last": _mean(edges[-LAST_SECOND:]),
    }


def collect(folder: Path, file: Path) -> None:
    """All rollouts and ghosts of EVAL in one file, a line for each clip."""
    lines = [
        {"row": one.parent.name, "uid": record["uid"], **clip_numbers(record)}
        for one in sorted(folder.glob("*/clips.jsonl"))
        for record in read_records(one).values()
    ]
    for one in sorted(folder.glob("ghosts_*.json")):
        lines += [
            {"row": one.stem, "uid": clip["uid"], "share": clip["share"]}
            for clip in json.loads(one.read_text())
        ]
    write_text(file, "".join(json.dumps(line) + "\n" for line in lines))


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows of the page, as Markdown; means over clips, of which there is one an episode."""
    text = []
    for name in dict.fromkeys(line["row"] for line in lines):
        part = [line for line in lines if line["row"] == name]
        if name.startswith("ghosts"):
            text.append(f"| {name} | {sum(line['share'] > GHOST for line in part)} of {len(part)} |")
            continue
        mean = {key: _mean([line[key] for line in part]) for key in part[0] if key not in ("row", "uid")}
        fade = (mean["edges_last"] or 0.0) / (mean["edges_first"] or 1.0)
        shown = [*(f"{mean[key]:.2f}" for key in (*SCORES, "gripper", "gripper_end")), f"{mean['kept']:.0%}"]
        text.append(f"| {name} | {' | '.join(shown)} | {fade:.2f} |")
    return text


def _mean(values: Sequence[float | None]) -> float | None:
    known = np.array([value for value in values if value is not None], float)
    return None if np.isnan(known).all() else round(float(np.nanmean(known)), 4)


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
    gather = parts.add_parser("collect")
    gather.add_argument("folder", type=Path)
    gather.add_argument("file", type=Path)
    parts.add_parser("table").add_argument("file", type=Path)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    if asked.part == "base":
        bare_model(asked.folder)
    elif asked.part == "ghosts":
        write_json(asked.file, ghosts(asked.model, asked.data))
    elif asked.part == "collect":
        collect(asked.folder, asked.file)
    else:
        print("\n".join(table([json.loads(line) for line in asked.file.read_text().splitlines()])))
    return 0
