"""The clips that the page of `worldmodel quickstart` shows, under true and under wrong actions."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from worldmodel.checkpoint.folder import read_description
from worldmodel.data.video import write_video
from worldmodel.evaluation.held_out import HeldOutClips, HeldOutConfig, held_out_clips
from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.nearest_frame import NearestFrames
from worldmodel.evaluation.rollouts.results import TRUE
from worldmodel.evaluation.rollouts.run import RolloutEvaluation, RolloutsConfig, Videos
from worldmodel.models.model import WorldModel
from worldmodel.models.picture_head import resized
from worldmodel.report.figures import draw_sheet
from worldmodel.report.videos import named_row
from worldmodel.types import EpisodeSource

PLACES = ("best", "worst")  # of the held-out clips, by the error of what moves
WRONG = {"other_episode": "another episode's actions", "reversed": "reversed actions"}
COLUMNS = 6  # frames of a sheet


def write_clips(model: Path, source: EpisodeSource, held_out: HeldOutConfig, out: Path) -> None:
    """For every place OUT/clips/PLACE.mp4 and .png, from the clips that `worldmodel rollout` has measured."""
    known = read_description(model)
    clips = held_out_clips(source, known.contract, known.normalizer, held_out, known.trained_on)
    settings = RolloutsConfig(controls=tuple(WRONG))
    evaluation = RolloutEvaluation(WorldModel.from_pretrained(model), clips, settings)
    for place, key in chosen_clips(read_records(out / "rollouts" / "clips.jsonl")).items():
        number = clips.keys.index(key)
        videos = shown(evaluation, clips, number)
        write_video(out / f"clips/{place}.mp4", iter(named_row(videos)), known.contract.fps)
        draw_sheet(out / f"clips/{place}.png", videos, COLUMNS)


def chosen_clips(records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Place -> key of the clip."""
    order = sorted(records, key=lambda key: (moving_error(records[key]), key))
    return dict(zip(PLACES, dict.fromkeys((order[0], order[-1])), strict=False))


def moving_error(record: Mapping[str, Any]) -> float:
    """Mean squared error of moving pixels under true actions; infinite where nothing moves."""
    known = [value for value in record["rows"][TRUE]["moving_mse"] if value is not None]
    return sum(known) / len(known) if known else math.inf


def shown(evaluation: RolloutEvaluation, clips: HeldOutClips, number: int) -> Videos:
    """Named videos from the last given frame on, at the camera's own size: without a head, enlarged."""
    last = evaluation.predictor.num_given - 1
    commands = evaluation.commands(number, clips[number])
    truth = clips.as_recorded(number)[last:]
    height, width = truth.shape[-2:]
    made = evaluation.shown(number, commands)
    videos = {name: resized(video[last:], (height, width)) for name, video in made.items()}
    index = replace(clips.index, config=replace(clips.index.config, height=height, width=width))
    remembered = NearestFrames(index, clips.normalizer)(clips[number].actions[last:])
    return {
        "recorded": truth,
        "model, true actions": videos[TRUE],
        **{words: videos[name] for name, words in WRONG.items() if name in videos},
        "nearest training frame": torch.cat([truth[:1], remembered]),
    }
