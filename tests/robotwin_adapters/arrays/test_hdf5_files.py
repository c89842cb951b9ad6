"""ALOHA / ACT files, and any HDF5 file by a mapping, as plain h5py wrote them."""

import pickle
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from robotwin_adapters.actions import ArmLayout
from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import CAMERAS, pictures, walk, write_aloha, write_variable


def test_aloha_numbers_pictures_and_names(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(open_dataset(write_aloha(tmp_path / "cube"))))
    assert (describe_format(source), len(source), source.name) == ("ALOHA HDF5", 2, "cube")
    episode = source[1]
    assert (episode.uid, episode.fps, episode.embodiment, episode.task) == ("episode_1", 50, "aloha", "cube")
    assert (episode.num_frames, episode.action_space) == (9, "joint_commands")
    assert episode.action_names == ArmLayout(6, 6).names == episode.state_names
    np.testing.assert_array_equal(episode.robot_actions, walk(9, 14, 1).astype(np.float32)[:-1])
    np.testing.assert_array_equal(episode.robot_states, walk(9, 14, 101).astype(np.float32))
    assert tuple(episode.frames) == CAMERAS  # the overview first
    for place, camera in enumerate(CAMERAS):
        order = [3, 8, 0, 3]
        np.testing.assert_array_equal(episode.frames[camera].read(order), pictures(9, place)[order])
    assert any("50 frames per second" in note for note in episode.notes)


def test_padded_jpegs_and_their_colors(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "set", compress=True)
    read = open_dataset(folder)[0].frames["cam_high"].read(range(9)).astype(int)
    assert np.abs(read - pictures(9)).mean() < 4
    assert any("swapped_colors" in note for note in open_dataset(folder)[0].notes)
    (folder / "dataset.yaml").write_text("swapped_colors: true\nfps: 30\nembodiment: two_arms\n")
    episode = open_dataset(folder)[0]
    swapped = episode.frames["cam_high"].read(range(9)).astype(int)
    assert np.abs(swapped - pictures(9)[..., ::-1]).mean() < 4
    assert (episode.fps, episode.embodiment) == (30, "two_arms")


def test_a_mobile_base_is_part_of_the_action(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "set", 1)
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        file["base_action"] = walk(9, 2)
    episode = open_dataset(folder)[0]
    assert episode.action_names[-2:] == ("base_linear", "base_angular")
    assert episode.delta_actions == ("base_linear", "base_angular")
    np.testing.assert_array_equal(episode.robot_actions[:, 14:], walk(9, 2)[:-1])


def test_a_tree_of_tasks_a_file_and_one_camera(tmp_path: Path) -> None:
    write_aloha(tmp_path / "tasks/cube")
    write_aloha(tmp_path / "tasks/peg", 1)
    tree = open_dataset(tmp_path / "tasks")
    assert [tree[i].uid for i in range(3)] == ["cube/episode_0", "cube/episode_1", "peg/episode_0"]
    single = open_dataset(tmp_path / "tasks/peg/episode_0.hdf5", camera="left_wrist")
    assert tuple(single[0].frames) == ("cam_left_wrist",)
    with pytest.raises(ValueError, match=r"no one camera 'top', it has cam_high, cam_left_wrist"):
        _ = open_dataset(tmp_path / "tasks/peg", camera="top")[0]


def test_other_layouts_by_a_mapping(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    folder.mkdir()
    with h5py.File(folder / "take2.h5", "w") as file:
        file["command/arm"], file["command/hand"] = walk(6, 3), np.arange(6)
        file["sensors/eye"] = np.moveaxis(pictures(6), 3, 1)
    (folder / "dataset.yaml").write_text(
        "action_keys: [command/arm, command/hand]\naction_names: [x, y, z, hand]\n"
        "camera_keys: [sensors/eye]\ncameras: [front]\nfps: 12\n"
    )
    episode = open_dataset(folder)[0]
    np.testing.assert_array_equal(episode.robot_actions[:, 3], np.arange(5))
    np.testing.assert_array_equal(episode.frames["front"].read([4]), pictures(6)[[4]])
    assert (episode.fps, episode.action_names[3], episode.embodiment) == (12, "hand", "lab")


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "set", 1)
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        del file["action"]
        file["action"] = walk(7, 14)
    with pytest.raises(ValueError, match=r"episode_0.hdf5: 7 actions for 9 frames, expected as many or one"):
        _ = open_dataset(folder)[0]
    (folder / "dataset.yaml").write_text("action_keys: [actions]\n")
    with pytest.raises(ValueError, match=r"no array 'actions', it has action, observations/qpos"):
        _ = open_dataset(folder)[0]


@pytest.mark.parametrize("storage", [{}, {"chunks": (4,)}, {"chunks": (4,), "compression": "gzip"}])
def test_jpegs_of_variable_length(tmp_path: Path, storage: dict) -> None:
    source = pickle.loads(pickle.dumps(open_dataset(write_variable(tmp_path / "set", **storage))))
    reader = source[1].frames["front"]
    assert (len(reader), reader.size) == (9, (24, 32))
    shown = reader.read([8, 0, 3]).astype(int)
    assert np.abs(shown - pictures(9, seed=1)[[8, 0, 3]]).mean() < 12
    with h5py.File(tmp_path / "set/traj_1.hdf5") as file:  # as HDF5 itself reads them
        jpeg = bytes(file["observations/images/front"][3])
    assert np.array_equal(shown[2], cv2.imdecode(np.frombuffer(jpeg, np.uint8), 1)[..., ::-1])
