from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.debug_run import CONFIG, losses
from worldmodel.config import load_config
from worldmodel.data.video import open_video
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.training.first_batch import write_first_batch
from worldmodel.training.world_model import TrainConfig, build_run, train


@pytest.mark.parametrize("weight", [0, 1])  # clips of latents alone, and with frames for the judge
def test_the_first_clips_are_shown_as_the_model_sees_them(
    weight: int, overrides: list[str], tmp_path: Path
) -> None:
    words = [*overrides, f"model.objective.idm_weight={weight}", "validation.num_clips=0"]
    config = load_config(TrainConfig, CONFIG, words)
    run = build_run(config, torch.device("cpu"))
    assert (run.train_clips[0].frames is None) == (weight == 0)
    path = tmp_path / "first_batch.mp4"
    write_first_batch(path, run.model, run.train_clips, config.fit, 2)
    video = open_video(path)
    assert len(video) == 2 * 9
    shown = video.read([0, 8])[:, :480].astype(float)
    assert np.abs(shown[0] - shown[1]).mean() > 1  # the shapes move
    before = path.read_bytes()
    write_first_batch(path, run.model, run.train_clips, config.fit, 1)
    assert path.read_bytes() == before


def test_a_run_shows_its_first_batch_and_its_losses_do_not_depend_on_it(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, count in (("shown", 4), ("none", 0)):
        words = [*overrides, "fit.steps=1", "validation.num_clips=0", f"first_batch={count}"]
        assert train(load_config(TrainConfig, CONFIG, [*words, f"output={tmp_path / name}"]), False)
        assert (tmp_path / name / "first_batch.mp4").exists() == bool(count)
    assert losses(tmp_path / "shown") == losses(tmp_path / "none")

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("worldmodel.training.first_batch.write_action_video", full)
    words = [*overrides, "fit.steps=1", "validation.num_clips=0", f"output={tmp_path / 'full'}"]
    assert train(load_config(TrainConfig, CONFIG, words), False)
    assert "first_batch.mp4 was not written: No space left" in caplog.text


def test_drawn_hands_are_dots_where_the_camera_sees_them():
    images = np.zeros((3, 48, 64, 3), np.uint8)
    hand = [0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0]  # closed, its tool 12 cm to the right of it
    poses = torch.tensor([[*hand, *[0.0] * 8], [*hand[:2], -2.0, *hand[3:], *[0.0] * 8]])
    view = torch.tensor([[1.0, 0, 0.5, 0], [0, 1.0, 0.25, 0], [0, 0, 1.0, 0]]).expand(2, 3, 4)
    marked = PoseMapsConfig().mark(images, {"poses": poses[:, None].repeat(1, 3, 1), "projections": view})
    assert not marked[0].any()
    assert np.argwhere(marked[1].any(-1)).tolist() == [[12, int((0.5 + 0.06) * 64)]]
    assert tuple(marked[1][12, 35]) == (255, 0, 0)
    assert not marked[2].any()  # behind the camera
    assert not images.any()
