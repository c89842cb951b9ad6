import dataclasses
from collections import Counter
from pathlib import Path

import pytest
import torch
from bench.rollout import (
    DESK,
    QUALITY,
    BenchConfig,
    PlainLoop,
    build_model,
    compare,
    measure_quality,
    show,
)

from worldmodel.cli import main as worldmodel
from worldmodel.config import load_config
from worldmodel.evaluation.held_out import HeldOutConfig
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.models.backbone import WanConfig
from worldmodel.training.world_model import TrainConfig

PROJECT = Path(__file__).parents[3]
TINY = WanConfig(num_layers=2, num_heads=2, head_dim=24, ffn_dim=96, text_dim=32, freq_dim=32)
CONFIG = BenchConfig(size=16, num_frames=9, steps=3, rounds=1, backbone=TINY)


@pytest.mark.parametrize("text_tokens", [1, 7])
def test_both_ways_make_the_same_video(text_tokens):
    model = build_model(CONFIG, text_tokens)
    frames = torch.rand(2, 1, 3, 16, 16)
    ours = ModelPredictor(model, 3)(frames, torch.zeros(2, 8, 14), 9, 5)
    plain = PlainLoop(model, TINY)(frames, 3, 5)
    assert ours.shape == plain.shape == (2, 9, 3, 16, 16)
    assert (ours - plain).abs().max() < 1e-5
    assert (ours - PlainLoop(model, TINY)(frames, 2, 5)).abs().max() > 1e-3  # other steps, other video


def test_no_work_is_done_twice():
    model = build_model(CONFIG, 4)
    backbone, calls = model.fdm.backbone, Counter()
    parts = {
        "text": backbone.condition_embedder.text_embedder,
        "rotary": backbone.rope.base,
        "modulation": backbone.condition_embedder.time_proj,
        "block": backbone.blocks[0],
    }
    for name, part in parts.items():
        part.register_forward_hook(lambda *_, name=name: calls.update([name]))
    frames, actions = torch.rand(1, 1, 3, 16, 16), torch.zeros(1, 8, 14)
    for steps in (1, 8):
        ModelPredictor(model, steps)(frames, actions, 9, 0)
        assert calls == {"text": 1, "modulation": 1, "block": steps} | ({"rotary": 1} if steps == 1 else {})
        calls.clear()
    plain, rotary = PlainLoop(model, TINY), []
    plain.transformer.rope.register_forward_hook(lambda *_: rotary.append(1))
    plain(frames, 8, 0)
    assert len(rotary) == 8  # what is saved


def test_the_backbone_is_the_shipped_one():
    shipped = load_config(TrainConfig, str(PROJECT / "configs/desk/streaming.yaml")).model.backbone
    assert dataclasses.replace(shipped, zero_output=False, latent_channels=16) == DESK


def test_figures_have_the_right_names_and_print():
    rows = compare(CONFIG, 4)
    assert [row["way"] for row in rows] == ["ours", "plain", "plain with guidance"]
    assert all(row["largest_difference"] < 1e-5 for row in rows)
    assert rows[0]["contrast"] > 0.01
    assert rows[0]["times_ours"] == 1
    assert "ours" in show({"compare": rows, "quality": []})


def test_quality_against_steps(model_folder, source, monkeypatch):
    monkeypatch.setattr("bench.rollout.open_for_model", lambda model, path: source)
    held_out = HeldOutConfig(split="all", episodes=2)
    config = BenchConfig(checkpoint=str(model_folder), data="x", held_out=held_out, quality_steps=(1, 3))
    quality = measure_quality(config)
    assert [row["steps"] for row in quality] == [1, 3]
    assert all(row["psnr"]["count"] == 2 for row in quality)
    assert quality[0]["psnr"]["mean"] != quality[1]["psnr"]["mean"]
    assert set(quality[0]) == {"steps", "seconds", *QUALITY}
    # The error's mean over frames is ruled by the worst ones, the mean of dB by those that did not move.
    assert all(row["clip_psnr"]["mean"] < row["psnr"]["mean"] for row in quality)
    text = show({"compare": [], "quality": quality})
    assert f"{quality[1]['moving_psnr']['mean']:.2f} [" in text
    near = measure_quality(dataclasses.replace(config, teacher=str(model_folder), teacher_steps=3))
    assert near[0]["to_teacher"]["mean"] > near[1]["to_teacher"]["mean"] == 0  # itself, in as many steps


def test_quality_of_a_model_that_draws_poses(tmp_path):
    words = ["collect", "--task", "place_a2b_left", "--embodiment", "heron", "--episodes", "1"]
    assert worldmodel([*words, "--size", "64", "64", "--out", str(tmp_path / "data")]) == 0
    held_out = HeldOutConfig(split="all", episodes=1)
    config = BenchConfig(
        checkpoint="desk", data=str(tmp_path / "data"), held_out=held_out, quality_steps=(1,)
    )
    (row,) = measure_quality(config)
    assert row["clip_psnr"]["mean"] > 25  # it knows this robot and sees its commands
