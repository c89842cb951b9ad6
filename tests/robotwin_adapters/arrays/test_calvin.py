"""CALVIN's folders as numpy writes them."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import pictures, walk, write_calvin


def test_frames_of_an_episode_are_between_its_borders(tmp_path: Path) -> None:
    write_calvin(tmp_path / "calvin/training")
    source = pickle.loads(pickle.dumps(open_dataset(tmp_path / "calvin/training")))
    assert (describe_format(source), len(source)) == ("CALVIN, a frame a file", 2)
    episode = source[1]
    assert (episode.uid, episode.fps, tuple(episode.frames)) == (
        "episode_0000020",
        30,
        ("rgb_static", "rgb_gripper"),
    )
    assert (episode.action_names[0], episode.action_space) == ("x", "pose_commands")
    assert episode.delta_actions == ()  # known, whatever the numbers look like
    np.testing.assert_array_equal(episode.robot_actions, walk(9, 7, 20)[:-1])
    np.testing.assert_array_equal(episode.robot_states, walk(9, 15, 21))
    np.testing.assert_array_equal(episode.frames["rgb_static"].read([8, 2]), pictures(9, seed=20)[[8, 2]])
    np.testing.assert_array_equal(
        episode.frames["rgb_gripper"].read([0]), pictures(9, seed=20)[[0], :32, :32]
    )


def test_changes_by_a_mapping_and_splits_as_one_tree(tmp_path: Path) -> None:
    for split in ("training", "validation"):
        write_calvin(tmp_path / "calvin" / split)
    (tmp_path / "changes.yaml").write_text("action_keys: [rel_actions]\n")
    source = open_dataset(tmp_path / "calvin", mapping=tmp_path / "changes.yaml")
    assert (len(source), source[3].uid) == (4, "validation/episode_0000020")
    np.testing.assert_array_equal(source[3].robot_actions, walk(9, 7, 22)[:-1])


def test_a_missing_frame_and_wrong_borders_are_named(tmp_path: Path) -> None:
    folder = write_calvin(tmp_path / "set")
    (folder / "episode_0000007.npz").unlink()
    with pytest.raises(
        ValueError, match=r"set: episode_0000007\.npz is missing, which ep_start_end_ids\.npy names"
    ):
        _ = open_dataset(folder)[0]
    np.save(folder / "ep_start_end_ids.npy", np.array([[5, 3]]))
    with pytest.raises(
        ValueError, match=r"ep_start_end_ids\.npy: int64 \(1, 2\), expected first and last frames"
    ):
        open_dataset(folder)
