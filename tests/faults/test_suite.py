"""The long suites of this folder in a size for `make test-faults`; both also run as commands, for longer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults
ROOT = Path(__file__).parents[2]
COMMANDS = (
    *("convert", "encode_latents", "collect", "rollouts", "train", "train_lora", "train_mcl"),
    *("table2", "disentanglement_study", "identifiability"),
)


READERS = (
    *("robotwin_hdf5", "robotwin_zip", "robotwin_xpolicylab", "robotwin_pickles"),
    *("lerobot_v21", "lerobot_v30", "video_folder", "mapping"),
    *("aloha", "aloha_jpeg", "robomimic", "libero", "isaac", "agibot", "rlds", "zarr", "zarr_packed", "npz"),
    *("annotations", "pickles", "records", "checkpoint"),
    *("model_description", "world_model", "world_model_lora", "backbone", "autoencoder", "locator", "prompt"),
    *("image_encoder", "mddiff", "image_vae", "context_model"),
)


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_commands_end_as_undisturbed_ones(name: str, tmp_path: Path) -> None:
    out = tmp_path / "kills.jsonl"
    command = [sys.executable, "-m", "tests.faults.kills", name, "--kills", "15", "--out", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'eval'}"})
    result = json.loads(out.read_text())
    assert result["kills"] >= 10
    assert result["compared_files"] > 0
    assert (result["exit_code"], result["differing"], result["leftovers"]) == (0, [], [])


@pytest.mark.parametrize("name", READERS)
def test_broken_inputs_are_refused_or_read(name: str) -> None:
    from tests.faults.fuzz import TARGETS, fuzz

    assert set(READERS) == set(TARGETS)
    counts, faults = fuzz(name, first=0, count=500)
    assert not faults, "\n".join(faults)
    assert sum(counts.values()) == 500


def test_signals_stop_commands_that_then_go_on(tmp_path: Path) -> None:
    out = tmp_path / "signals.jsonl"
    command = [sys.executable, "-m", "tests.faults.signals", "--out", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'eval'}"})
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(results) == 27
    assert [result for result in results if not result["is_good"]] == []
