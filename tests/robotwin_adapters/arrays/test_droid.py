"""DROID's raw recordings, written by h5py and PyAV."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import pictures, walk, write_droid


def test_numbers_pictures_and_words(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(open_dataset(write_droid(tmp_path / "droid_raw"))))
    assert (describe_format(source), len(source)) == ("DROID raw", 2)
    episode = source[1]
    assert episode.uid == "AUTOLab/success/2023-07-02/Fri_Jul__2_09:42:23_2023"
    assert (episode.fps, episode.task, episode.embodiment) == (15, "put the cup away", "droid_franka")
    assert tuple(episode.frames) == ("exterior_1", "exterior_2", "wrist")  # no stereo, the wrist last
    np.testing.assert_array_equal(episode.robot_actions[:, :6], walk(9, 6, 1)[:-1])
    np.testing.assert_array_equal(episode.robot_actions[:, 6:], walk(9, 1, 1)[:-1])
    np.testing.assert_array_equal(episode.robot_states[:, :6], walk(9, 6, 51))
    assert (episode.action_names[:3], episode.action_space) == (("x", "y", "z"), "pose_commands")
    assert episode.delta_actions == ()  # targets, whatever the numbers look like
    shown = episode.frames["wrist"].read([4, 0]).astype(int)
    assert np.abs(shown - pictures(9)[[4, 0]]).mean() < 12


def test_an_episode_folder_opens_alone_and_a_mapping_takes_joints(tmp_path: Path) -> None:
    root = write_droid(tmp_path / "droid_raw", 1)
    (folder,) = (path.parent for path in root.rglob("trajectory.h5"))
    (tmp_path / "joints.yaml").write_text(
        "action_keys: [action/joint_position]\naction_names: [a, b, c, d, e, f, g]\n"
    )
    episode = open_dataset(folder, mapping=tmp_path / "joints.yaml")[0]
    np.testing.assert_array_equal(episode.robot_actions, walk(9, 7)[:-1])
    assert not any("target poses" in note for note in episode.notes)


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    root = write_droid(tmp_path / "droid_raw", 1)
    (path,) = root.rglob("trajectory.h5")
    with h5py.File(path, "a") as file:
        del file["action/gripper_position"]
        file["action/gripper_position"] = np.zeros(4)
    with pytest.raises(ValueError, match=r"trajectory\.h5: .*have \[9, 4\] rows"):
        _ = open_dataset(root)[0]
    for video in root.rglob("*.mp4"):
        video.unlink()
    with pytest.raises(ValueError, match=r"no video in .*MP4"):
        _ = open_dataset(root)[0]
