"""One default camera for every part of the project that looks at a dataset."""

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from robotwin_adapters.camera_order import overview_first
from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode
from robotwin_adapters.tools.inspect_dataset import format_summary, summarize
from tests.support.video_sets import write_video_set
from worldmodel.cli import main
from worldmodel.data.clips import ClipConfig, cut_clip
from worldmodel.data.index import index_episodes
from worldmodel.training.model_data import frame_contract
from worldmodel.types import EpisodeSource

LEROBOT = Path(__file__).parent / "data/lerobot_v30"


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("desk_camera", "front_camera", "head_camera", "left_camera"), "head_camera"),
        (("desk_camera", "left_camera", "right_camera"), "desk_camera"),
        (("cam_left_wrist", "cam_right_wrist", "cam_high"), "cam_high"),
        (("wrist_image_left", "exterior_image_1_left", "exterior_image_2_left"), "exterior_image_1_left"),
        (("wrist_image", "image"), "image"),
        (("0", "1", "2"), "0"),
    ],
)
def test_the_overview_comes_first(names: tuple[str, ...], first: str) -> None:
    ordered = overview_first(names)
    assert ordered[0] == first
    assert sorted(ordered) == sorted(names)


def robotwin_set(folder: Path) -> EpisodeSource:
    rng = np.random.default_rng(0)
    joints, opening = rng.uniform(-1, 1, (2, 6, 6)), np.ones(6)
    names = ("desk_camera", "head_camera", "left_camera")
    cameras = {name: CameraRecord(rng.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)) for name in names}
    write_robotwin_episode(folder, 0, RobotwinEpisode(joints[0], opening, joints[1], opening, cameras))
    return open_dataset(folder)


def video_set(folder: Path) -> EpisodeSource:
    mapping = write_video_set(folder, cameras=("a_wrist", "side", "top"), episodes=1)
    return open_dataset(folder, mapping=mapping)


@pytest.mark.parametrize(
    ("make", "camera"),
    [(robotwin_set, "head_camera"), (video_set, "top"), (lambda _: open_dataset(LEROBOT), "cam_high")],
)
def test_inspect_training_and_clips_agree(tmp_path: Path, make, camera: str) -> None:
    source = make(tmp_path / "set")
    assert f"shown        {camera}: no camera was named" in format_summary(summarize(source, [0]))
    clip = ClipConfig(num_frames=5, height=32, width=32)
    index = index_episodes([source], clip)
    vae = SimpleNamespace(config={"z_dim": 16, "scale_factor_spatial": 8})
    assert frame_contract(index, vae).camera == camera
    assert index.camera_summary().startswith(f"camera {camera} (no camera was named")
    named = cut_clip(source[0], 0, ClipConfig(num_frames=5, height=32, width=32, camera=camera))
    assert (cut_clip(source[0], 0, clip)[0] == named[0]).all()


def test_inspect_prints_the_camera(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    robotwin_set(tmp_path / "set")
    assert main(["inspect", str(tmp_path / "set"), "--out", str(tmp_path / "out")]) == 0
    assert "head_camera: no camera was named, and it is the first of head_camera, desk" in (
        capsys.readouterr().out
    )
    command = ["inspect", str(tmp_path / "set"), "--out", str(tmp_path / "out"), "--camera", "desk_camera"]
    assert main(command) == 0
    assert "desk_camera: the only camera" in capsys.readouterr().out


def test_training_logs_the_camera(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from worldmodel.config import load_config
    from worldmodel.training.autoencoder import AutoencoderConfig, train

    caplog.set_level(logging.INFO)
    robotwin_set(tmp_path / "set")
    config = load_config(
        AutoencoderConfig,
        None,
        [
            f"output={tmp_path / 'run'}",
            "data.synthetic_episodes=0",
            f"data.paths=[{tmp_path / 'set'}]",
            "data.clip.num_frames=5",
            "data.splits.val=0.0",
            "data.splits.test=0.0",
            "fit.steps=1",
            "fit.global_batch=1",
            "fit.micro_batch=1",
            "fit.machine.device=cpu",
        ],
    )
    assert train(config, resume=False)
    assert "camera head_camera (no camera was named, and it is the first of head_camera, desk" in caplog.text
