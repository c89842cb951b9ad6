"""What is shipped works as it is: the desk model, the gripper locator and the demo's settings."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel.checkpoint.model_card import model_card
from worldmodel.cli import main
from worldmodel.config import load_config
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.metrics.video import mse
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.locator.model import Locator
from worldmodel.locator.truth import label_episode
from worldmodel.models.model import WorldModel
from worldmodel.training.world_model import TrainConfig

PROJECT = Path(__file__).parents[2]
WEIGHTS = PROJECT / "worldmodel/weights"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One episode of a robot that the model was trained on, from a seed that it was not."""
    pytest.importorskip("mujoco")
    from robotwin_adapters.tabletop.collect import collect_all
    from robotwin_adapters.tabletop.record import RecordingConfig

    folder = tmp_path_factory.mktemp("shipped")
    collect_all(folder, [RecordingConfig("place_a2b_left", "heron")], episodes=1, seed=500_000, workers=1)
    return folder


@pytest.fixture
def dataset(folder):
    from robotwin_adapters.robotwin.dataset import RobotwinDataset

    return RobotwinDataset(folder, action_space="pose_commands")


def test_the_weights_are_small_and_load_and_the_demo_starts_from_them():
    size = {path.name: sum(file.stat().st_size for file in path.rglob("*")) for path in WEIGHTS.iterdir()}
    assert size.keys() == {"desk", "head", "locator"}
    assert size["desk"] + size["head"] <= 20e6, "what trainings start from"
    assert size["locator"] <= 1.7e6
    demo = load_config(TrainConfig, str(PROJECT / "configs/desk/demo.yaml"))
    assert PROJECT / demo.start_from == WEIGHTS / "desk"
    assert WorldModel.from_pretrained(WEIGHTS / "desk").config.regime == "acg"
    assert Locator.from_pretrained(WEIGHTS / "locator").config.height == 64


def test_the_shipped_model_says_that_its_actions_are_commands(folder):
    from robotwin_adapters.open_dataset import action_space_for
    from worldmodel.evaluation.command_line import open_for_model

    model = WorldModel.from_pretrained(WEIGHTS / "desk")
    assert {stats.action_space for stats in model.normalizer.stats.values()} == {"pose_commands"}
    assert action_space_for(model.normalizer) == "pose_commands"
    stated = "| actions | pose_commands (end-effector poses that were commanded) |"
    assert stated in model_card(model.config, model.contract, model.normalizer)
    assert stated in (WEIGHTS / "desk/README.md").read_text()
    assert load_config(TrainConfig, str(WEIGHTS / "desk/training.yaml")).data.action_space == "pose_commands"
    assert open_for_model(str(WEIGHTS / "desk"), str(folder))[0].action_space == "pose_commands"


def test_the_robot_of_the_demo_was_seen_by_no_shipped_network():
    trained_on = json.loads((WEIGHTS / "desk/trained_on.json").read_text())
    assert "finch" not in json.dumps(trained_on)
    assert "finch" not in WorldModel.from_pretrained(WEIGHTS / "desk").normalizer.stats


@pytest.mark.slow
def test_the_shipped_model_moves_the_arms_as_told(dataset):
    model = WorldModel.from_pretrained(WEIGHTS / "desk")
    config = HeldOutConfig(split="all", clips_per_episode=3)
    clips = held_out_clips(dataset, model.contract, model.normalizer, config)
    predictor, errors = ModelPredictor(model, num_inference_steps=1), []
    for clip in (clips[number] for number in range(len(clips))):
        commands = predictor.commands(clip)
        told = torch.stack([commands, commands.flip(0)])
        made = predictor(clip.frames[None, :1].expand(2, -1, -1, -1, -1), told, len(clip.frames), 0, clip)
        static = clip.frames[:1].expand(len(clip.frames), -1, -1, -1)
        errors.append([mse(video[1:], clip.frames[1:]).mean().item() for video in (*made, static)])
    true, backwards, static = np.mean(errors, 0)
    assert true < 0.5 * static
    assert true < 0.5 * backwards


@pytest.mark.slow
def test_the_shipped_locator_finds_the_grippers(folder):
    from robotwin_adapters.robotwin.dataset import RobotwinDataset

    dataset = RobotwinDataset(folder, action_space="measured_poses")
    labeled = label_episode(dataset, 0, "desk_camera", (64, 64), 24)
    found = Locator.from_pretrained(WEIGHTS / "locator").locate(
        torch.from_numpy(labeled.frames).float() / 255
    )
    distance = np.linalg.norm(found.points.numpy() - labeled.points, axis=2)
    seen = labeled.is_known & labeled.is_visible
    assert seen[:, :2].sum() >= 12  # only the arm that works is in the picture
    assert distance[:, :2][seen[:, :2]].mean() < 1.5


@pytest.mark.slow
def test_the_documented_diagnosis_of_the_shipped_model_runs(folder, tmp_path):
    page = tmp_path / "page.html"
    command = ["diagnose", str(WEIGHTS / "desk"), "--dataset", str(folder), "--out", str(page)]
    assert main([*command, "--clips", "1"]) == 0
    assert "Mechanism diversity of the actions" in page.read_text()
