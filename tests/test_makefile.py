import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worldmodel.config import load_config
from worldmodel.locator.train import LocatorRunConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.training.autoencoder import AutoencoderConfig
from worldmodel.training.world_model import TrainConfig

ROOT = Path(__file__).parents[1]
DATA = {"target/episode0.hdf5", "latents/episode0.safetensors"}
MADE = {"run/log.jsonl", "clips.jsonl", "report.html", "videos/clip000.mp4"}


def forget(folder: Path) -> set[str]:
    """What `make demo` finds of an earlier one."""
    subprocess.run(["make", "-s", "demo-forget"], cwd=folder, check=True)
    demo = folder / "outputs/demo"
    return {path.relative_to(demo).as_posix() for path in demo.rglob("*") if path.is_file()} - {"made_from"}


def write(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_demo_goes_on_unless_weights_config_or_evaluation_changed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    weights, config = "worldmodel/weights/desk/scene.safetensors", "configs/desk/demo.yaml"
    script, readme = "worldmodel/evaluation/controls.py", "worldmodel/weights/desk/README.md"
    write(tmp_path, {weights, config, script, readme, "outputs/other"})
    write(tmp_path / "outputs/demo", DATA | MADE)
    assert forget(tmp_path) == DATA  # of a version that did not say what it was made from
    for changed, left in (
        (readme, DATA | MADE),
        (weights, DATA),
        (config, DATA),
        (script, DATA),
    ):
        write(tmp_path / "outputs/demo", MADE)
        assert forget(tmp_path) == DATA | MADE
        (tmp_path / changed).write_text("other")
        assert forget(tmp_path) == left, changed
    assert (tmp_path / "outputs/other").exists()


RECORDING = """#!/bin/sh
echo "$*" >> calls
case "$*" in *"$FAIL_AT"*) exit 3;; esac
"""
SCHEMAS: dict[str, type[Any]] = {
    "train": TrainConfig,
    "train-autoencoder": AutoencoderConfig,
    "train-locator": LocatorRunConfig,
}


def desk(folder: Path, command: list[str], fail_at: str = "nothing fails") -> tuple[int, list[str], str]:
    """Exit code, calls of programs that do nothing but record them, and what was printed."""
    (folder / "calls").write_text("")
    environment = {**os.environ, "FAIL_AT": fail_at, "BIN": "./bin"}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    return done.returncode, (folder / "calls").read_text().splitlines(), done.stdout + done.stderr


MAKE_DESK = ["make", "-s", "desk", "BIN=./bin"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with our Makefile, the script, and an environment of such programs."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    write(tmp_path, {"pyproject.toml", "constraints.txt", "training/desk.sh"})
    shutil.copy(ROOT / "training/desk.sh", tmp_path / "training")
    write(tmp_path, {".venv/.installed", "bin/python", "bin/worldmodel"})
    for name in ("python", "worldmodel"):
        (tmp_path / "bin" / name).write_text(RECORDING)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def test_make_desk_goes_on_where_it_failed_and_skips_what_is_done(project: Path) -> None:
    code, first, said = desk(project, MAKE_DESK, "configs/desk/compositor.yaml")
    assert code
    assert len(first) == 7
    assert "configs/desk/compositor.yaml --resume" in said  # each step shows its command
    code, second, said = desk(project, MAKE_DESK)
    assert code == 0
    assert "== streaming: done before" in said
    assert second[0] == first[-1]
    assert len(first) - 1 + len(second) == 10
    assert desk(project, MAKE_DESK)[:2] == (0, [])


def test_the_desk_script_lists_its_steps_and_does_one_alone(project: Path) -> None:
    script = ["training/desk.sh"]
    code, calls, said = desk(project, [*script, "--only", "target"])
    assert (code, len(calls)) == (0, 1)
    assert "--embodiment finch --episodes 100" in calls[0]
    code, calls, said = desk(project, [*script, "--list"])
    assert (code, calls, len(said.splitlines())) == (0, [], 12)
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("done")] == ["target"]
    assert len(desk(project, [*script, "--only", "target"])[1]) == 1  # again, though it has its mark
    assert len(desk(project, script)[1]) == 9
    assert len(desk(project, [*script, "--bases"])[1]) == len(("acg", "lacg"))  # the rest is done
    for wrong in (["--only", "nothing"], ["--only"], ["all"]):
        code, calls, said = desk(project, [*script, *wrong])
        assert (code, calls) == (2, [])
        assert "STEP is one of: source target heldout" in said


def trainings(calls: list[str]) -> list[Any]:
    """The configs of the trainings among the calls."""
    configs: list[Any] = []
    for command, *words in (call.split() for call in calls):
        if command in SCHEMAS:
            path = str(ROOT / words[0]) if words[0].endswith(".yaml") else None
            configs.append(load_config(SCHEMAS[command], path, [word for word in words if "=" in word]))
    return configs


def test_make_desk_gives_settings_that_exist_and_stages_that_follow_each_other(project: Path) -> None:
    configs = trainings(desk(project, MAKE_DESK)[1])
    expected = ("streaming_autoencoder", "streaming", "compositor", "head", "locator")
    assert [config.output for config in configs] == [f"outputs/desk/{name}" for name in expected]
    autoencoder, model, compositor, head, _ = configs
    assert model.model.vae == f"{autoencoder.output}/vae"
    assert compositor.start_from == head.start_from == f"{model.output}/model"
    assert not head.head_from


def test_the_bases_of_table2_are_of_one_family(project: Path) -> None:
    configs = trainings(desk(project, ["training/desk.sh", "--bases"])[1])
    expected = ("streaming_autoencoder", "streaming", "acg", "lacg", "locator")
    assert [config.output for config in configs] == [f"outputs/desk/{name}" for name in expected]
    streaming, acg, lacg = configs[1:4]
    assert acg.model == replace(streaming.model, actions=ActionConfig())
    assert lacg.model.pretrained == f"{streaming.output}/model"
    as_acg = replace(lacg.model, regime="acg", pretrained="", objective=acg.model.objective)
    assert as_acg == acg.model
    assert lacg.data == acg.data
