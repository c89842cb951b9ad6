"""What `pip install worldmodel` brings: its contents, and the way from episodes to a report."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_BYTES = 20_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = out / "build"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [
            *command,
            "--config-settings",
            f"--build-option=build --build-base={build}",
            "-w",
            str(out),
            str(ROOT),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = [line for line in (done.stdout + done.stderr).splitlines() if "Location" not in line]
    assert printed == []  # no banner of the build
    (found,) = out.glob("*.whl")
    return found


def test_it_holds_two_packages_with_presets_and_weights_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"worldmodel", "robotwin_adapters"}
    assert {
        "worldmodel/presets/debug/world_model.yaml",
        "worldmodel/presets/wan/lora.yaml",
        "worldmodel/presets/desk/demo.yaml",
        "worldmodel/weights/desk/contract.json",
        "worldmodel/cli/__init__.py",
        "worldmodel/report/page.html",
        "robotwin_adapters/tabletop/collect.py",
    } <= set(names)
    assert not [
        name for name in names if "__pycache__" in name or name.startswith(("worldmodel/outputs", "tests"))
    ]
    assert wheel.stat().st_size <= MAX_BYTES


def without_the_tree() -> dict[str, str]:
    """Settings of a process that must not find this checkout."""
    return {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """The programs of a fresh environment with the wheel; what it depends on is lent by this one."""
    pytest.importorskip("mujoco")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    place = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    )
    packages = Path(place.stdout.strip())
    lent = tmp_path / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "worldmodel" not in entry.name:
            (lent / entry.name).symlink_to(entry)
    (packages / "lent.pth").write_text(f"{lent}\n")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        wheel,
    ]
    subprocess.run(install, check=True, cwd=tmp_path, env=without_the_tree())
    return tmp_path / "env/bin"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_way_to_a_report_from_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    def run(*command: str) -> str:
        done = subprocess.run(
            [str(installed / command[0]), *command[1:]],
            cwd=tmp_path,
            env=without_the_tree(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
        return done.stdout

    where = run("python", "-c", "import worldmodel; print(worldmodel.__file__)")
    assert str(installed.parent) in where
    babble = "collect --task babble --embodiment finch --episodes 2 --size 32 32 --workers 1 --out episodes"
    run("worldmodel", *babble.split())
    data = ["data.paths=[episodes]", "data.synthetic_episodes=0", "fit.steps=2"]
    run("worldmodel", "train-autoencoder", "debug/autoencoder", *data, "output=autoencoder")
    settings = [*data, "model.vae=autoencoder/vae", "data.splits.val_uids=[data/episode1]"]
    run("worldmodel", "train", "debug/world_model", *settings, "output=first")
    launch = ["python", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "-m"]
    run(*launch, "worldmodel.training.world_model", "debug/world_model", *settings, "output=second")
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("first", "second")]
    assert all("loss" in log for log in logs)
    run("worldmodel", "rollout", "first/model", "episodes", "output=report", "held_out.split=all")
    assert (tmp_path / "report/report.html").is_file()
