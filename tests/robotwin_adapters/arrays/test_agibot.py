"""AgiBot World's folders, written by h5py and PyAV."""

import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import pictures, walk, write_agibot


def test_numbers_pictures_and_words(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(open_dataset(write_agibot(tmp_path / "sample"))))
    assert (describe_format(source), len(source)) == ("AgiBot World", 2)
    episode = source[1]
    assert (episode.uid, episode.fps, episode.task) == ("327/648643", pytest.approx(30), "Pickup items")
    assert tuple(episode.frames) == ("head_color", "hand_left_color")
    np.testing.assert_array_equal(episode.robot_actions[:, :14], walk(9, 14, 1).astype(np.float32)[:-1])
    np.testing.assert_array_equal(episode.robot_actions[:, 14:], walk(9, 2, 1).astype(np.float32)[:-1])
    assert episode.action_names[13:] == ("right_joint7", "left_gripper", "right_gripper")
    assert episode.state_names[-2:] == ("head_yaw", "head_pitch")
    shown = episode.frames["head_color"].read([4, 0]).astype(int)
    assert np.abs(shown - pictures(9)[[4, 0]]).mean() < 12


def test_without_commands_the_next_state_is_the_action(tmp_path: Path) -> None:
    folder = write_agibot(tmp_path / "sample", 1)
    with h5py.File(folder / "proprio_stats/327/648642/proprio_stats.h5", "a") as file:
        del file["action"]
    episode = open_dataset(folder)[0]
    assert {"the file holds no joint commands", "the action is the next state"} <= set(episode.notes)
    np.testing.assert_array_equal(episode.robot_actions, episode.robot_states[1:])


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_agibot(tmp_path / "sample", 2)
    with h5py.File(folder / "proprio_stats/327/648642/proprio_stats.h5", "a") as file:
        del file["timestamp"]
        file["timestamp"] = np.arange(11)
    (folder / "task_info/task_327.json").write_text(json.dumps([{"id": 1}]))
    source = open_dataset(folder)
    with pytest.raises(ValueError, match=r"task_327\.json: expected a list of episodes with episode_id"):
        _ = source[0]
    (folder / "task_info/task_327.json").unlink()
    with pytest.raises(ValueError, match=r"head_color\.mp4: 9 frames, expected 11"):
        _ = source[0]
