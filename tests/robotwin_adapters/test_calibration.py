from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.mapping import MAPPING_FILE, read_mapping, relabeled
from tests.support.pose_sets import HEAD, HandPoses
from worldmodel.data.clips import ClipConfig
from worldmodel.data.transitions import clip_transitions, read_rows
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.types import Episode

YAML = """
calibration:
  {camera}:
    focal: [358.642, 358.642]
    center: [160, 120]
    extrinsics: [1, 0, 0, 0.032, 0, -0.8, -0.6, 0.45, 0, 0.6, -0.8, {last}]
"""


@pytest.fixture
def episode() -> Episode:
    return HandPoses(1, None, num_frames=10, size=(240, 320))[0]


def mapped(folder: Path, episode: Episode, camera: str = "head", last: str = "1.35") -> Episode:
    (folder / MAPPING_FILE).write_text(YAML.format(camera=camera, last=last))
    mapping = read_mapping(folder, None)
    assert mapping is not None
    return relabeled(episode, mapping)


def test_a_mapping_calibrates_cameras_that_files_do_not_describe(tmp_path: Path, episode: Episode) -> None:
    camera = mapped(tmp_path, episode).cameras["head"]
    np.testing.assert_allclose(camera.intrinsics, HEAD.intrinsics)
    np.testing.assert_allclose(camera.extrinsics, HEAD.extrinsics)
    assert camera.size == (240, 320)
    config = ClipConfig(num_frames=9, height=48, width=64)
    clip = clip_transitions(mapped(tmp_path, episode), 0, episode.robot_actions[:8], config)
    assert read_rows(ActionConfig(pose_maps=PoseMapsConfig()), clip)["projections"].shape == (8, 3, 4)


def test_a_calibration_that_does_not_fit_is_refused(tmp_path: Path, episode: Episode) -> None:
    other = mapped(tmp_path, episode, camera="wrist")  # a set may lack the camera
    assert (other.cameras, other.notes[-1]) == ({}, "calibration of wrist not used: no such camera")
    with pytest.raises(ValueError, match="extrinsics are 3 x 4 numbers, row by row, got 13"):
        mapped(tmp_path, episode, last="1.35, 7")
