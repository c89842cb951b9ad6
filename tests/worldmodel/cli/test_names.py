"""Wrong names and paths are told at once: torch is not imported for them."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from worldmodel.cli import COMMANDS, main
from worldmodel.shipped import is_hub_id

WRONG = {
    "rollout dekc data": "no world model folder at dekc, and none of the shipped ones: desk, head, locator",
    "sensitivity desk no/such/data": "no dataset at no/such/data: no such file or folder",
    "submit ./no/model data": "no world model folder at ./no/model",
    "train debug/world_modl": "did you mean debug/world_model",
    "encode-latents my.yaml": "no config file at my.yaml",
    "diagnose desk --dataset no/such/data": "no dataset at no/such/data",
    "play dekc": "no world model folder at dekc",
    "inspect no/such/data": "no dataset at no/such/data",
    "quickstart no/such/data --minutes 1": "no dataset at no/such/data",
    "convert no/such/data out --to lerobot": "no dataset at no/such/data",
    "trian": "no command 'trian'",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_name_is_told_without_torch(words: str) -> None:
    code = (
        "import sys, worldmodel.cli; code = worldmodel.cli.main(sys.argv[1:]); "
        "print('torch' in sys.modules, 'pyarrow' in sys.modules); sys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True)
    assert done.returncode == 2
    assert WRONG[words] in done.stderr
    assert done.stdout == "False False\n"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5  # .07 s


def test_every_command_that_names_something_is_checked() -> None:
    """Those that take a config, a model or data as their first words say so."""
    without = {command.name for command in COMMANDS if not command.names}
    assert without == {"doctor", "collect", "encode-prompt", "presets", "smoke-test"}


def test_a_hub_id_is_not_taken_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("owner/name")
    (tmp_path / "outputs").mkdir()
    assert not is_hub_id("outputs/first")
    assert main(["rollout", "outputs/first", "data"]) == 2
