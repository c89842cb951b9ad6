"""The direct predictor beside a world model: the same CPU time, the same clips."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldmodel.data.clips import ClipConfig
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.evaluation.controls import static_video
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.jsonl_store import RecordLines
from worldmodel.evaluation.metrics.video import score_video
from worldmodel.models.config import InputSpec
from worldmodel.quickstart import baseline
from worldmodel.quickstart.commands import Quickstart
from worldmodel.training.datasets import DataConfig, open_index, trained_on


def test_the_baseline_is_a_row_of_the_same_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = SplitConfig(val=0.0, test=0.0, test_uids=("episode3",))
    data = DataConfig(
        synthetic_episodes=4, clip=ClipConfig(num_frames=9, height=32, width=32, step=1), splits=splits
    )
    index = open_index(data)
    known = SimpleNamespace(
        contract=InputSpec(9, 32, 32, 50 / 3, camera="head", latent_scale=4),
        normalizer=index.normalizer(),
        trained_on=trained_on(data, index),
    )
    source = synthetic_source(4, 18, (32, 32), embodiments=("robot0",))
    held_out = HeldOutConfig(clips_per_episode=2)
    clips = held_out_clips(source, known.contract, known.normalizer, held_out, known.trained_on)
    lines = RecordLines(tmp_path / "rollouts/clips.jsonl", {})
    for number, key in enumerate(clips.keys):
        frames = clips[number].frames
        scores = score_video(static_video(frames[0], 8), frames[1:], frames[0])
        rows = {"static": scores, "autoencoder": scores, "true": scores}
        lines.add(
            key, {"uid": clips[number].uid, "task": "", "embodiment": "a", "num_given": 1, "rows": rows}
        )
    monkeypatch.setattr(baseline, "TRIAL_STEPS", 1)
    monkeypatch.setattr(baseline, "read_description", lambda folder: known)
    last = SimpleNamespace(last_good=lambda: SimpleNamespace(state={"cpu_seconds": 0.01}))
    monkeypatch.setattr(baseline, "CheckpointStore", lambda folder, keep: last)
    torch.manual_seed(0)
    (tmp_path / "run").mkdir()
    asked = Quickstart("data", tmp_path, 1.0, "desk/own_robot")
    found = baseline.train_baseline(data, source, asked, held_out)
    assert (found["steps"], found["row"]["clip_psnr"]["count"], found["wins"]["count"]) == (1, 1, 1)
    table, words = baseline.quality_blocks({"true": found["row"]}, found)
    assert [row[0] for row in table.rows] == ["true actions", "direct predictor (baseline)"]
    assert "for the same 0.0 minutes of one core, 1 steps" in words.text
    assert len(baseline.quality_blocks({"true": found["row"]}, None)) == 1
