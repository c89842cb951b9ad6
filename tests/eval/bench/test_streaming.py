import subprocess
import sys
from pathlib import Path

import pytest
from bench.streaming import StreamBenchConfig, load_model, measure_lengths, measure_speed, show


def test_every_way_is_timed_and_a_stream_of_any_length_is_as_large():
    config = StreamBenchConfig(batches=(1, 2), rounds=3, lengths=(9, 25))
    model = load_model(config)
    result = {"speed": measure_speed(config, model), "lengths": measure_lengths(config, model)}
    found = [(row["way"], row["batch"]) for row in result["speed"]]
    assert found == [(way, batch) for batch in (1, 2) for way in ("causal", "clips", "clips of 16")]
    for row in result["speed"]:
        count = 16 if row["way"] == "clips of 16" else 4
        assert row["fps"] * row["step_seconds"] == pytest.approx(row["batch"] * count)
    assert [row["frames"] for row in result["lengths"]] == [9, 25]
    assert abs(result["lengths"][1]["mb"] - result["lengths"][0]["mb"]) < 20
    assert "causal" in show(result)


def test_the_shipped_model_is_timed_by_the_script_itself():
    script = Path(__file__).parents[3] / "eval" / "bench" / "streaming.py"
    command = [sys.executable, str(script), "model=desk", "batches=[1]", "rounds=3", "lengths=[9,13]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "causal" in done.stdout
