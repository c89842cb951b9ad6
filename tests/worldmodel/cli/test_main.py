import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.robotwin_sets import write_robotwin_set
from worldmodel.cli import COMMANDS, main
from worldmodel.shipped import WEIGHTS


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_explains_itself_with_an_example(command, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command.name, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: worldmodel {command.name}")
    assert shown.rstrip().endswith(f"worldmodel {command.name} {command.example}")


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {command.name} " in shown and command.help in shown for command in COMMANDS)
    assert main([]) == 2
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("worldmodel ")


def test_bad_input_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for arguments, code, message in (
        (["fly"], 2, "no command 'fly'"),
        (["inspect", str(tmp_path / "none")], 2, "worldmodel inspect: no dataset at"),
        (["train", "debug/world_modl"], 2, "did you mean debug/world_model"),
        (["estimate", "debug/world_model", "--gpus", "4xabacus"], 2, "abacus"),
    ):
        assert main(arguments) == code
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error


def test_an_interrupt_is_said_and_has_its_exit_code(monkeypatch, capsys: pytest.CaptureFixture) -> None:
    def interrupt(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("worldmodel.cli.presets.main", interrupt)
    assert main(["presets"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_presets_are_listed_and_printed(capsys: pytest.CaptureFixture) -> None:
    assert main(["presets"]) == 0
    assert {"debug/world_model", "desk/demo", "wan/lora"} <= set(capsys.readouterr().out.split())
    assert main(["presets", "wan/lora"]) == 0
    assert "lora" in capsys.readouterr().out


def test_without_mujoco_collect_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['mujoco'] = None\n"
        "from worldmodel.cli import main\n"
        "sys.exit(main(['collect', '--task', 'babble', '--embodiment', 'finch', '--out', 'set']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert 'pip install -e ".[sim]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_of_another_kind_is_refused_before_anything_is_loaded(tmp_path, capsys) -> None:
    given = ["diagnose", "desk", "--dataset", str(tmp_path), "--out", str(tmp_path / "folder")]
    assert main(given) == 2
    assert "expected a page named *.html or *.md" in capsys.readouterr().err


TRAIN = ("data.synthetic_episodes=0", "model.vae=none")
OWN_OUTPUT = {
    "inspect": "inspect {data} --out {data}",
    "inspect in its default": "inspect .",
    "inspect through a link": "inspect {data} --out {link}/pictures",
    "convert": "convert {data} {data}/copy --to lerobot",
    "quickstart": "quickstart {data} --out {data}/first",
    "diagnose": "diagnose desk --dataset {data} --out {data}/page.html",
    "rollout": "rollout desk {data} output={data}/report",
    "rollout into the model": "rollout {weights}/desk {data} output={weights}/desk/report",
    "sensitivity": "sensitivity desk {data} output={data}",
    "submit": "submit desk {data} output={data}/videos",
    "train": "train debug/world_model data.paths=[{data}] output={data}/run " + " ".join(TRAIN),
    "train into its start": "train desk/demo data.paths=[{data}] output={weights}/desk",
    "train-autoencoder": "train-autoencoder debug/autoencoder data.synthetic_episodes=0 "
    "data.paths=[{data}] output={data}",
    "train-locator": "train-locator {data} output={data}/locator",
}


@pytest.mark.parametrize("command", OWN_OUTPUT.values(), ids=OWN_OUTPUT)
def test_no_command_writes_into_what_it_reads(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    data = tmp_path / "data"
    write_robotwin_set(data, joints=6, episodes=1, frames=4)
    (tmp_path / "link").symlink_to(data)
    before = sorted(data.rglob("*"))
    monkeypatch.chdir(data)
    assert main(command.format(data=data, link=tmp_path / "link", weights=WEIGHTS).split()) == 2
    assert "which is read; name another place to write to" in capsys.readouterr().err
    assert sorted(data.rglob("*")) == before
    assert not (WEIGHTS / "desk/report").exists()


def test_threads_wait_asleep_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert main(["presets"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert main(["presets"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
