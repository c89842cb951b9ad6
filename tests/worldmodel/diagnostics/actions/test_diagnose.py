import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode
from tests.support.video_sets import write_video_set
from worldmodel.cli import main
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset, build_clip_dataset, collate_clips
from worldmodel.data.synthetic import synthetic_source
from worldmodel.diagnostics.actions import world_model_diversity
from worldmodel.diagnostics.actions.diagnose import (
    diagnose_generator,
    diagnose_world_model,
    first_clips,
    load_generator,
    premises_section,
)
from worldmodel.diagnostics.actions.world_model_channel import world_model_channel
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.model import WorldModel
from worldmodel.types import EpisodeSource

ROBOTS = Path(__file__).parents[4] / "../shared/data/robots"
FILE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 10))

def double(z):
    return torch.cat([z, z**2], dim=1)

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "generators.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["build", "double"])
def test_a_generator_in_a_file_gets_its_page(file: Path, name: str, capsys: pytest.CaptureFixture) -> None:
    page = file.with_name("page.md")
    command = ["diagnose", f"{file}:{name}", "--blocks", "2", "1", "--points", "4", "--out", str(page)]
    assert main(command) == 0
    text = page.read_text()
    assert "3 latent coordinates in 2 blocks" in text
    holds = "| Type D: shared outputs | 0 |" in text
    assert holds == (name == "double")
    assert f"wrote {page}" in capsys.readouterr().out


def test_bad_names_end_with_one_line(file: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["diagnose", f"{file}:missing", "--blocks", "1", "--out", str(file.with_suffix(".md"))]) == 2
    assert "has no 'missing'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="expected a callable"):
        load_generator(f"{file}:number")
    with pytest.raises(ValueError, match="cannot import"):
        load_generator("no.such.module:thing")
    with pytest.raises(ValueError, match="block sizes are positive"):
        diagnose_generator(f"{file}:double", file.with_suffix(".md"), block_sizes=[])


def test_a_world_model_answers_to_its_actions(make_world_model, randomize, clips: ClipDataset) -> None:
    model = make_world_model().eval()
    randomize(model.interface)
    batch = collate_clips([clips[i] for i in range(2)])
    assert batch.frames is not None
    generate = world_model_channel(model, batch.frames[:, :1], num_inference_steps=2)
    noise = torch.randn(2, model.contract.latent_channels, *model.contract.latent_grid)
    with torch.no_grad():
        first = generate(noise, batch.robot_actions)
        second = generate(noise, -batch.robot_actions)
    assert first.shape == (2, 12, 3, 32, 32)
    assert (first - second).abs().max() > 0
    with pytest.raises(ValueError, match="training mode"):
        world_model_channel(model.train(), batch.frames[:, :1])


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Two RoboTwin episodes of a robot with two joints per arm."""
    rng = np.random.default_rng(0)
    for index in range(2):
        joints = rng.normal(0, 0.1, (14, 6)).cumsum(0)
        frames = rng.integers(0, 256, (14, 32, 32, 3), dtype=np.uint8)
        arms = {"left_arm": joints[:, :2], "right_arm": joints[:, 3:5]}
        grippers = {"left_gripper": np.tanh(joints[:, 2]) / 2 + 0.5, "right_gripper": np.linspace(0, 1, 14)}
        episode = RobotwinEpisode(**arms, **grippers, cameras={"head_camera": CameraRecord(frames)})
        write_robotwin_episode(tmp_path / "recordings", index, episode)
    return tmp_path / "recordings"


def test_a_saved_world_model_that_hears_one_arm_gets_a_page_that_says_so(
    make_world_model, randomize, recordings: Path, tmp_path: Path
) -> None:
    like = make_world_model()
    config = ClipConfig(num_frames=13, fps=like.contract.fps, height=32, width=32)
    clips = build_clip_dataset([open_dataset(recordings)], config=config)
    contract = dataclasses.replace(like.contract, camera="head_camera")
    model = WorldModel.build(like.config, contract, clips.normalizer, vae=like.vae)
    randomize(model.interface)
    (stats,) = clips.normalizer.stats.values()
    right = [i for i, name in enumerate(stats.names) if name.startswith("right")]
    with torch.no_grad():
        model.interface.adaln.layers[0].weight.unflatten(1, (4, -1))[:, :, right] = 0
    model.save_pretrained(tmp_path / "model")
    page = tmp_path / "page.md"
    command = ["diagnose", str(tmp_path / "model"), "--dataset", str(recordings), "--out", str(page)]
    assert main([*command, "--clips", "2"]) == 0
    rows = {row[1].strip(): row for line in page.read_text().splitlines() if len(row := line.split("|")) > 3}
    assert float(rows["left"][2]) > 0
    assert float(rows["right"][2]) == 0
    assert float(rows["Type D: pixels moved by several groups"][2]) == 0
    assert (tmp_path / "page_1_0.png").stat().st_size > 1000
    assert "Assumption 2 holds at" in page.read_text()
    assert int(rows["0"][2]) == 4  # the rank of the contrasts at the one point
    assert float(rows["0"][4]) < 1e6


@pytest.mark.parametrize(("aspect", "merge"), [("crop", "sum"), ("stretch", "last")])
def test_clips_are_cut_as_the_model_was_trained(make_world_model, aspect: str, merge: str) -> None:
    """Wide pictures, and two recorded frames to a clip frame."""
    model = make_world_model()
    model.contract = dataclasses.replace(model.contract, num_frames=5, aspect=aspect, merge=merge)
    source = synthetic_source(8, 20, (32, 64), 6, ("a",), fps=2 * model.contract.fps)
    batch, _ = first_clips(model, source, 1)
    config = ClipConfig(5, stride=2, height=32, width=32, aspect=aspect, merge=merge)
    expected = build_clip_dataset([source], config=config, normalizer=model.normalizer)[0]
    assert batch.frames is not None
    assert torch.equal(batch.frames[0], expected.frames)
    assert torch.equal(batch.robot_actions[0], expected.robot_actions)


def saved_model(make_world_model, randomize, source: EpisodeSource, camera: str, folder: Path) -> WorldModel:
    like = make_world_model()
    fps = min(like.contract.fps, source[0].fps)
    clip = ClipConfig(num_frames=13, fps=fps, height=32, width=32, camera=camera)
    normalizer = build_clip_dataset([source], config=clip).normalizer
    contract = dataclasses.replace(like.contract, camera=camera, fps=fps)
    model = WorldModel.build(like.config, contract, normalizer, vae=like.vae)
    randomize(model.interface)
    model.save_pretrained(folder)
    return model


def first_column(page: Path, title: str) -> list[str]:
    """The first cells of the table below a heading."""
    below = page.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return [line.split("|")[1].strip() for line in below.splitlines() if line.startswith("|")][2:]


@pytest.fixture
def without_contrasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Third derivatives take seconds, and have tests of their own."""
    monkeypatch.setattr(world_model_diversity, "MAX_PARAMETERS", 0)


@pytest.mark.usefixtures("without_contrasts")
def test_one_arm_in_a_folder_of_videos(make_world_model, randomize, tmp_path: Path) -> None:
    mapping = write_video_set(tmp_path / "arm")
    source = open_dataset(tmp_path / "arm", mapping=mapping)
    saved_model(make_world_model, randomize, source, "side", tmp_path / "model")
    page = tmp_path / "page.md"
    command = ["diagnose", str(tmp_path / "model"), "--dataset", str(tmp_path / "arm"), "--out", str(page)]
    command += ["--mapping", str(mapping), "--clips", "1"]
    assert main(command) == 0
    assert first_column(page, "Action channel") == ["position", "rotation", "gripper"]
    assert "| rotation | 3, 4, 5 | roll, pitch, yaw |" in page.read_text()
    assert main([*command, "--groups", "arm=0-5", "--camera", "wrist"]) == 0
    assert first_column(page, "Action channel") == ["arm"]
    assert "as given by --groups. Left out: gripper." in page.read_text()


def test_the_camera_that_was_asked_for_is_shown(make_world_model, randomize, tmp_path: Path) -> None:
    mapping = write_video_set(tmp_path / "arm")
    source = open_dataset(tmp_path / "arm", mapping=mapping)
    model = saved_model(make_world_model, randomize, source, "side", tmp_path / "model")
    shown = {
        camera: first_clips(model, source, 1, camera=camera)[0].frames for camera in (None, "side", "wrist")
    }
    assert torch.equal(shown[None], shown["side"])
    assert not torch.equal(shown["wrist"], shown["side"])


@pytest.mark.usefixtures("without_contrasts")
def test_columns_without_names_stand_by_themselves(make_world_model, randomize, tmp_path: Path) -> None:
    mapping = write_video_set(tmp_path / "arm", names=(), dim=3)
    source = open_dataset(tmp_path / "arm", mapping=mapping)
    model = saved_model(make_world_model, randomize, source, "side", tmp_path / "model")
    page = tmp_path / "page.md"
    diagnose_world_model(model, first_clips(model, source, 1)[0], page)
    assert first_column(page, "Action channel") == ["action_0", "action_1", "action_2"]
    with pytest.raises(ValueError, match=r"\[3\] do not exist. The actions have 3 dimensions"):
        diagnose_world_model(model, first_clips(model, source, 1)[0], page, groups="all=0-3")


@pytest.mark.usefixtures("without_contrasts")
@pytest.mark.parametrize(
    ("name", "camera", "groups"),
    [
        ("droid_franka_real/droid_subset", "0", "arm=0-5,gripper=6"),
        ("lerobot_v20_gr1_sim", "ego_view", "arms=0-6,22-28"),
        ("lerobot_v21_arx_x5_dual", "cam_head", "left=0-6,right=7-13"),
    ],
)
def test_real_robots_get_a_page(
    make_world_model, randomize, tmp_path: Path, name: str, camera: str, groups: str
) -> None:
    if not (ROBOTS / name).is_dir():
        pytest.skip(f"no {name} here")
    source = open_dataset(ROBOTS / name, camera=camera, verify=False)
    model = saved_model(make_world_model, randomize, source, camera, tmp_path / "model")
    page = tmp_path / "page.md"
    diagnose_world_model(model, first_clips(model, source, 1)[0], page, groups=groups)
    assert first_column(page, "Action channel") == re.findall(r"(\w+)=", groups)


def test_a_contrast_is_held_against_the_premises_of_its_theorem(make_world_model, batch) -> None:
    def text_of(**settings) -> str:
        model = make_world_model(mcl=ActionMclConfig(mode="first_order", **settings)).eval()
        (section,) = premises_section(model, batch, seed=0, rank="V has rank 0.")
        (text,) = section.blocks
        return text.text

    text = text_of()  # d_z is a whole latent frame: 16 channels of 8 x 8
    assert "Theorem 2, on 16 rows" in text
    assert (
        "the embedding of 128 is too narrow for 1024 latents, set mcl.embedding_dim to 2 d_z + 1 = 2049"
        in text
    )
    assert "so the network has not learned it. V has rank 0." in text
    assert "the embedding of 2049 is wide enough for 1024 latents" in text_of(embedding_dim=2049)
    action_dim = 4 * batch.robot_actions.shape[2]
    assert f"too narrow for {action_dim} latents" in text_of(latent="latent_action", embedding_dim=4)
    assert premises_section(make_world_model(), batch, seed=0) == []
