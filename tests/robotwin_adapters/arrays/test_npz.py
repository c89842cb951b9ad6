"""NPZ files with pictures and numbers, as numpy writes them."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import pictures, walk, write_npz


def test_numbers_pictures_and_words(tmp_path: Path) -> None:
    folder = write_npz(tmp_path / "maze", 11, fps=np.array(15), instruction=np.array("go left"))
    source = pickle.loads(pickle.dumps(open_dataset(folder)))
    assert (describe_format(source), len(source), source.name) == ("NPZ with frames", 11, "maze")
    episode = source[2]
    assert (episode.uid, episode.fps, episode.task) == ("2", 15, "go left")
    np.testing.assert_array_equal(episode.robot_actions, walk(9, 4, 2)[:-1])
    np.testing.assert_array_equal(episode.robot_states, walk(9, 6))
    np.testing.assert_array_equal(episode.frames["image"].read([8, 0]), pictures(9)[[8, 0]])


def test_dreamers_actions_are_shifted(tmp_path: Path) -> None:
    actions = walk(9, 4)
    actions[0] = 0
    first = np.arange(9) == 0
    episode = open_dataset(write_npz(tmp_path / "set", 1, action=actions, is_first=first))[0]
    np.testing.assert_array_equal(episode.robot_actions, actions[1:])
    assert any("shifted by one" in note for note in episode.notes)
    kept = open_dataset(write_npz(tmp_path / "other", 1, action=walk(9, 4), is_first=first))[0]
    np.testing.assert_array_equal(kept.robot_actions, walk(9, 4)[:-1])


def test_pictures_of_floats_and_channels_first(tmp_path: Path) -> None:
    planar = np.moveaxis(pictures(9), 3, 1).astype(np.float32) / 255
    episode = open_dataset(write_npz(tmp_path / "set", 1, image=planar))[0]
    np.testing.assert_array_equal(episode.frames["image"].read(range(9)), pictures(9))


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_npz(tmp_path / "set", 2, action=np.full((9, 2), np.nan))
    with pytest.raises(ValueError, match=r"1\.npz: 'action' has NaN or infinity in row 0"):
        _ = open_dataset(folder)[1]
    np.savez(folder / "1.npz", image=pictures(9), action=np.array([{"a": 1}] * 9))
    with pytest.raises(ValueError, match=r"1\.npz: .*action"):
        _ = open_dataset(folder)[1]
    np.savez(folder / "1.npz", picture_depth=pictures(9), action=walk(9, 2))
    with pytest.raises(ValueError, match=r"1\.npz: no pictures among its arrays"):
        _ = open_dataset(folder)[1]


@pytest.mark.parametrize(
    ("mark", "rows"), [("done", [3, 8]), ("timeouts", [3]), ("is_last", [3, 8]), ("is_first", [0, 4])]
)
def test_several_episodes_in_one_file_are_refused(tmp_path: Path, mark: str, rows: list[int]) -> None:
    """Read as one, clips would run from the end of an episode into the next one."""
    marks = np.isin(np.arange(9), rows)
    source = open_dataset(write_npz(tmp_path / "set", 1, **{mark: marks}))
    with pytest.raises(
        ValueError, match=rf"0\.npz: '{mark}' marks a border behind row 3, so the file holds 2"
    ):
        _ = source[0]
    until_the_end = np.arange(9) >= (6 if mark != "is_first" else 9)  # done stays set: one episode
    one = open_dataset(write_npz(tmp_path / "one", 1, **{mark: until_the_end}))[0]
    assert one.num_frames == 9


def test_several_episodes_in_one_hdf5_file_are_refused(tmp_path: Path) -> None:
    """D4RL's layout, as a mapping that names its arrays would open it."""
    with h5py.File(tmp_path / "kitchen.hdf5", "w") as file:
        file["images"], file["actions"], file["terminals"] = pictures(9), walk(9, 4), np.zeros(9, bool)
        file["timeouts"] = np.isin(np.arange(9), [4, 8])
    (tmp_path / "dataset.yaml").write_text("camera_keys: [images]\naction_keys: [actions]\nfps: 10\n")
    with pytest.raises(ValueError, match=r"kitchen\.hdf5: 'timeouts' marks a border behind row 4"):
        _ = open_dataset(tmp_path)[0]
