import pytest
import torch

from eval.bench_rollout import BenchConfig, PlainLoop, build_model, compare, measure_length, show
from eval.predictors import ModelPredictor
from worldmodel.models.wan import WanConfig

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


def test_figures_have_the_right_names_and_print():
    rows = compare(CONFIG, 4)
    assert [row["way"] for row in rows] == ["ours", "plain", "plain with guidance"]
    assert all(row["largest_difference"] < 1e-5 for row in rows)
    assert rows[0]["contrast"] > 0.01
    assert rows[0]["times_ours"] == 1
    assert all(row["seconds"] > 0 for row in rows)
    lengths = [measure_length(CONFIG, chunks) for chunks in (1, 3)]
    assert [length["frames"] for length in lengths] == [8, 24]
    quality = {"steps": 4, "mean": 25.0, "low": 24.0, "high": 26.0, "seconds": 0.5}
    text = show({"compare": rows, "lengths": lengths, "quality": [quality]})
    assert "25.00 (24.00 to 26.00)" in text
