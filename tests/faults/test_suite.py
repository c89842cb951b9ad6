"""The long suites of this folder in a size for `make test-faults`; both also run as commands, for longer."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.faults
COMMANDS = ("convert", "encode_latents", "collect", "rollouts", "train", "train_lora", "train_mcl")


READERS = (
    *("robotwin_hdf5", "robotwin_zip", "robotwin_xpolicylab", "robotwin_pickles"),
    *("lerobot_v21", "lerobot_v30", "video_folder", "mapping"),
    *("aloha", "robomimic", "rlds", "zarr", "npz"),
    *("model_description", "backbone", "autoencoder", "locator", "prompt", "image_encoder"),
)


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_commands_end_as_undisturbed_ones(name: str, tmp_path: Path) -> None:
    import json
    import subprocess
    import sys

    out = tmp_path / "kills.jsonl"
    command = [sys.executable, "-m", "tests.faults.kills", name, "--kills", "15", "--out", str(out)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
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
