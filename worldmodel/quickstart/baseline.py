"""The row of `worldmodel quickstart --baseline`: a direct predictor trained for the same time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from worldmodel.checkpoint.folder import read_description
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.metrics.video import score_video
from worldmodel.evaluation.rollouts.page import quality_table
from worldmodel.evaluation.rollouts.results import summarize, wins
from worldmodel.quickstart.commands import Quickstart
from worldmodel.quickstart.direct import train_direct
from worldmodel.report.intervals import estimate_of
from worldmodel.report.page import Table, Text
from worldmodel.training.datasets import DataConfig, open_clips, open_index
from worldmodel.training.loop.checkpoints import CheckpointStore
from worldmodel.types import EpisodeSource

DIRECT = "direct"
FILE = "baseline.json"
TRIAL_STEPS = 6


def train_baseline(
    data: DataConfig, source: EpisodeSource, asked: Quickstart, held_out: HeldOutConfig
) -> dict[str, Any]:
    """Train in OUT/baseline for the CPU time of the world model; its row, and the share of wins over it.

    Args:
        data: of the world model's training. Its frames are decoded once, into OUT/frames.
        source: the dataset, as the evaluations read it.
        asked: the quickstart, whose model is trained and rolled out.
        held_out: the clips of those rollouts.
    """
    known, out = read_description(asked.model), asked.out
    seconds = sum(_cpu_seconds(run) for run in (asked.base, asked.head) if run.exists())
    data = replace(data, latents="", frames=str(out / "frames"))
    clips = open_clips(data, open_index(data), "train", known.normalizer, None, True)
    _, trial = train_direct(clips, TRIAL_STEPS, out / "baseline" / "trial")
    steps = max(1, int(seconds * TRIAL_STEPS / trial.cpu_seconds))
    model, _ = train_direct(clips, steps, out / "baseline" / str(steps))
    judged = held_out_clips(source, known.contract, known.normalizer, held_out, known.trained_on)
    records = [dict(record) for record in read_records(out / "rollouts" / "clips.jsonl").values()]
    for number, record in enumerate(records):
        clip, first = judged[number], record["num_given"]
        with torch.no_grad():
            made = model(clip.frames[:1], clip.actions[None])[0, first - 1 :]
        scores = score_video(made, clip.frames[first:], clip.frames[first - 1])
        record["rows"] = {**record["rows"], DIRECT: scores}
    row = summarize(records)["rows"][DIRECT]
    ahead = wins(records, DIRECT, "moving_clip_psnr").to_dict()
    return {"steps": steps, "minutes": seconds / 60, "row": row, "wins": ahead}


def _cpu_seconds(run: Path) -> float:
    """Of one core, over all resumptions of a training."""
    last = CheckpointStore(run / "checkpoints", 1).last_good()
    assert last is not None, "a finished training has a checkpoint"
    return float(last.state["cpu_seconds"])


def quality_blocks(rows: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> tuple[Table | Text, ...]:
    """The table of all rows, and what the comparison with the baseline says."""
    if baseline is None:
        return (quality_table(rows),)
    won = estimate_of(baseline["wins"])
    words = (
        "The direct predictor has no latents and no diffusion. It learned for the same "
        f"{baseline['minutes']:.1f} minutes of one core, {baseline['steps']} steps. The world model is ahead "
        f"of it on moving pixels in {won.percent()} of {won.count} episodes."
    )
    return quality_table({**rows, DIRECT: baseline["row"]}), Text(words)
