"""A published model from a local hub cache, through every command that takes a model."""

from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.mapping import DataMapping
from tests.support.published_sets import tiny_state, write_source, write_vae
from tests.support.service import running
from tests.support.video_sets import write_video_set
from worldmodel.checkpoint.folder import read_description
from worldmodel.checkpoint.published import KINDS
from worldmodel.cli import main
from worldmodel.config import load_config
from worldmodel.models.model import WorldModel
from worldmodel.serving.app import create_app
from worldmodel.serving.client import WorldModelClient
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.run import serve_model

SIZE = ["--height", "64", "--width", "48", "--num-frames", "17", "--fps", "16.6667", "--camera", "side"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """someone/open-world in a hub cache, as a download leaves it."""
    place, commit = tmp_path / "hub/models--someone--open-world", "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text(commit)
    source = place / "snapshots" / commit / "wm_student_2view"
    write_source(source, "open-world", tiny_state("open-world"))
    (source / "inference_config.py").write_text("raise SystemExit('a published config is not executed')")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return "someone/open-world"


@pytest.mark.slow
def test_an_imported_model_goes_through_all_commands(
    hub: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vae = write_vae(tmp_path / "vae", "open-world")
    model, data = str(tmp_path / "model"), str(tmp_path / "arm")
    mapping = write_video_set(Path(data), cameras=("side",), episodes=3, frames=24)
    theirs, mine = tmp_path / "theirs.yaml", tmp_path / "mine.yaml"
    poses = mapping.read_text() + "action_keys: []\naction_space: measured_poses\n"
    theirs.write_text(poses.replace("one_arm", "franka"))
    mine.write_text(poses)
    assert main(["import", "open-world", hub, "--out", model, "--vae", vae, *SIZE]) == 0
    printed = capsys.readouterr().out
    assert "someone/open-world, wm_student_2view.pt; license: apache-2.0" in printed
    known = read_description(Path(model))
    assert (known.contract.camera, known.contract.layout, known.config.history) == ("side", None, 4)

    common = ["--mapping", str(theirs), "held_out.split=all", "held_out.episodes=1", "num_inference_steps=1"]
    for command, settings in (("rollout", "controls=[reversed]"), ("sensitivity", "response_clips=0")):
        done = main([command, model, data, *common, f"output={tmp_path / command}", settings])
        assert done == (3 if command == "sensitivity" else 0)  # random weights do not follow actions
        assert (tmp_path / command / "report.html").is_file()

    served, frames = serve_model(model), np.zeros((13, 64, 48, 3), np.uint8)
    with running(create_app(served, ServeConfig(num_inference_steps=1))) as address:
        client = WorldModelClient(address)
        with client.open(frames, past_actions=np.zeros((12, 7))) as session:
            assert session.step(np.zeros((4, 7))).shape == (4, 64, 48, 3)

    run = [
        f"start_from={model}",
        f"output={tmp_path / 'run'}",
        f"data.paths=[{data}]",
        f"data.mapping={mine}",
    ]
    run += [f"data.latents={tmp_path / 'latents'}", "data.clip.num_frames=17", "data.clip.height=64"]
    run += ["data.clip.width=48", "data.clip.fps=16.6667", "data.clip.camera=null", "data.clip.step=4"]
    run += ["model.dtype=float32", "model.lora.rank=2", "validation.num_clips=0", "fit.trackers=[]"]
    run += ["fit.steps=2", "fit.global_batch=2", "fit.num_workers=0", "fit.machine.device=cpu"]
    assert main(["train", "published/open_world_lora", *run]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "exported")]) == 0
    exported = WorldModel.from_pretrained(tmp_path / "exported")
    assert exported.normalizer.embodiments == ("franka", "one_arm")
    assert exported.config.lora.rank == 2
    assert "license: apache-2.0" in (tmp_path / "exported/README.md").read_text()


def test_the_mappings_name_what_the_models_take() -> None:
    for kind, name in (("bwm", "bwm"), ("open-world", "ctrl_world_franka")):
        mapping = load_config(DataMapping, f"configs/data/{name}.yaml")
        assert mapping.state_names == KINDS[kind].names
        assert mapping.embodiment == KINDS[kind].embodiment


def test_a_source_that_is_nowhere_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "bwm", "./nothing", "--out", str(tmp_path / "out")]) == 2
    assert "./nothing: no such file or folder" in capsys.readouterr().err
