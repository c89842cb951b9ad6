"""The examples of `--help`, with the defaults of their commands, on a few short episodes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worldmodel.cli import COMMANDS, main

# Exit codes that the pages state. 3: the actions are not followed, as no test of two episodes can show.
CODES = {
    "doctor": 0,
    "inspect": 0,
    "convert": 0,
    "presets": 0,
    "estimate": 0,
    "diagnose": 0,
    "rollout": 0,
    "sensitivity": 3,
    "submit": 0,
    "train-context": 0,
    "train-concepts": 0,
    "train-vae": 0,
}
CALL = "import sys; from worldmodel.cli import main; sys.exit(main())"
# The others need the hub, an earlier run or minutes of training, or run until they are stopped.
ELSEWHERE = {
    "quickstart", "collect", "encode-latents", "encode-prompt", "train", "train-autoencoder", "train-locator",
    "train-identifiability", "smoke-test", "export", "score", "score-concepts", "compare-models", "play",
    "serve",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for robot in ("finch", "heron"):
        given = (
            f"collect --task place_a2b_left --embodiment {robot} --episodes 2 --size 64 64 --no-supersample"
        )
        assert main([*given.split(), "--workers", "1", "--out", str(folder / "data" / robot)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", [one for one in COMMANDS if one.name in CODES], ids=lambda one: one.name)
def test_the_example_of_a_command_ends_as_the_pages_say(command, place: Path) -> None:
    example = command.example.split(" > ")[0].replace("outputs/first/model data/finch", "desk data/heron")
    example = example.replace("desk data/finch", "desk data/heron")
    done = subprocess.run(
        [sys.executable, "-c", CALL, command.name, *example.split()],
        cwd=place,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == CODES[command.name], done.stderr[-2000:]
    assert "Traceback" not in done.stderr


def test_every_command_is_tried_here_or_elsewhere() -> None:
    assert set(CODES) | ELSEWHERE == {command.name for command in COMMANDS}
