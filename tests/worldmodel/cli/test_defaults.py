"""The examples of `--help`, with the defaults of their commands, on a few short episodes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from worldmodel.cli import COMMANDS
from worldmodel.shipped import PRESETS

# Exit codes that the pages state, in the order in which a user would give the commands.
CODES = {
    "doctor": 0,
    "presets": 0,
    "estimate": 0,
    "collect": 0,
    "inspect": 0,
    "convert": 0,
    "train-autoencoder": 0,
    "encode-latents": 0,
    "encode-prompt": 2,  # no network here
    "import": 2,  # nor here
    "train": 0,
    "export": 0,
    "diagnose": 0,
    "rollout": 0,
    "sensitivity": 0,
    "submit": 0,
    "score": 0,
    "compare-models": 0,
    "train-context": 0,
    "train-concepts": 0,
    "train-vae": 0,
    "score-concepts": 0,
    "train-locator": 0,
    "train-identifiability": 0,
    "smoke-test": 0,
    "quickstart": 0,
    "play": 130,  # Ctrl-C ends it
    "serve": 130,
}
# What is made smaller, or stands for what an earlier command of another page makes.
TINY = {
    "--episodes 20": "--episodes 8 --size 64 64 --no-supersample --workers 1",
    "fit.steps=500": "fit.steps=2",
    "out=outputs/ivae": "out=outputs/ivae optimization.epochs=1 report_epochs=[1] num_seeds=2",
    "outputs/mddiff/model data.path=rooms": "outputs/debug/beta_vae/model data.size=16 num_fid=0"
    " num_pictures=512 num_votes=2000 num_mig=512 dci_train=0 num_reconstructed=8",
    "--minutes 10": "--minutes 2",
}
CALL = (
    "import signal, sys; from worldmodel.cli import main; "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a background job ignores Ctrl-C
    "sys.exit(main())"
)
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "BROWSER": "true"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    (folder / "my.yaml").write_bytes((PRESETS / "debug/world_model.yaml").read_bytes())
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CODES)
def test_the_example_of_a_command_ends_as_the_pages_say(name: str, place: Path) -> None:
    example = next(command.example for command in COMMANDS if command.name == name).split(" > ")[0]
    for usual, tiny in TINY.items():
        example = example.replace(usual, tiny)
    call = [sys.executable, "-c", CALL, name, *example.split()]
    with subprocess.Popen(
        call, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        if name in ("play", "serve"):
            assert program.stdout is not None
            assert any("Ctrl-C ends it" in line for line in program.stdout)
            program.send_signal(signal.SIGINT)
        errors = program.communicate()[1]
    assert program.returncode == CODES[name], errors[-2000:]
    assert "Traceback" not in errors


def test_every_command_is_tried() -> None:
    assert CODES.keys() == {command.name for command in COMMANDS}
