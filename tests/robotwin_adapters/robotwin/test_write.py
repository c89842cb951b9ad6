import json
from dataclasses import replace
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from robotwin_adapters.robotwin.dataset import RobotwinDataset
from robotwin_adapters.robotwin.write import (
    CameraRecord,
    RobotwinEpisode,
    robotwin_episode_from,
    write_robotwin_episode,
    write_robotwin_index,
)

COUNT = 6


@pytest.fixture
def episode(robotwin_files) -> RobotwinEpisode:
    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(COUNT, *shape)) for shape in ((3, 3), (3, 4), (4, 4))]
    return RobotwinEpisode(
        **robotwin_files.draw_joints(COUNT, 7, 7),
        left_endpose=robotwin_files.draw_poses(COUNT),
        right_endpose=robotwin_files.draw_poses(COUNT),
        cameras={"head_camera": CameraRecord(robotwin_files.draw_frames(COUNT), *matrices)},
    )


def tree(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}

    def note(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            assert item.chunks is None, name
            assert item.compression is None, name
            kind = "S" if item.dtype.kind == "S" else item.dtype.name
            found[name] = kind, item.shape

    with h5py.File(path) as file:
        file.visititems(note)
    return found


def test_tree_is_the_one_robotwin_writes(tmp_path: Path, episode: RobotwinEpisode, robotwin_files) -> None:
    ours = write_robotwin_episode(tmp_path, 3, episode)
    robotwin_files.write_legacy(
        tmp_path / "other.hdf5", count=COUNT, left=7, right=7, cameras=("head_camera",)
    )
    assert ours == tmp_path / "data" / "episode3.hdf5"
    assert tree(ours) == tree(tmp_path / "other.hdf5")
    assert tree(ours)["joint_action/vector"] == ("float64", (COUNT, 16))
    assert tree(ours)["pointcloud"] == ("float64", (COUNT, 0))


def test_commanded_poses_leave_robotwins_bytes_alone(
    tmp_path: Path, episode: RobotwinEpisode, robotwin_files
) -> None:
    poses = {f"{side}_commanded_endpose": robotwin_files.draw_poses(COUNT) for side in ("left", "right")}
    plain = write_robotwin_episode(tmp_path, 0, episode)
    ours = write_robotwin_episode(tmp_path, 1, replace(episode, **poses))
    new = {f"commanded_endpose/{side}_endpose": ("float64", (COUNT, 7)) for side in ("left", "right")}
    assert tree(ours) == {**tree(plain), **new}
    with h5py.File(plain) as before, h5py.File(ours) as after:
        for name in tree(plain):
            assert before[name][()].tobytes() == after[name][()].tobytes(), name
    commanded = RobotwinDataset(tmp_path, action_space="measured_poses")[1]
    assert "poses are measured, grippers are commanded" in commanded.notes


def test_numbers_are_exact_and_opencv_sees_true_colors(tmp_path: Path, episode: RobotwinEpisode) -> None:
    with h5py.File(write_robotwin_episode(tmp_path, 0, episode)) as file:
        vector = file["joint_action/vector"][()]
        np.testing.assert_array_equal(vector[:, :7], episode.left_arm)
        np.testing.assert_array_equal(vector[:, 7], episode.left_gripper)
        np.testing.assert_array_equal(vector[:, 8:15], episode.right_arm)
        np.testing.assert_array_equal(vector[:, 15], episode.right_gripper)
        np.testing.assert_array_equal(file["endpose/left_endpose"][()], episode.left_endpose)
        np.testing.assert_array_equal(file["endpose/right_gripper"][()], episode.right_gripper)
        camera = episode.cameras["head_camera"]
        np.testing.assert_array_equal(
            file["observation/head_camera/cam2world_gl"][()], camera.cam2world_gl.astype(np.float32)
        )
        for jpeg, frame in zip(file["observation/head_camera/rgb"][()], camera.rgb, strict=True):
            seen = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)  # no swap: the RoboTwin way
            assert np.abs(seen.astype(int) - frame).mean() < 2.5


def test_reader_returns_what_was_written(tmp_path: Path, episode: RobotwinEpisode) -> None:
    write_robotwin_episode(tmp_path, 0, episode)
    read = RobotwinDataset(tmp_path)[0]
    expected = np.concatenate(
        [episode.left_arm, episode.left_gripper[:, None], episode.right_arm, episode.right_gripper[:, None]],
        1,
    ).astype(np.float32)
    np.testing.assert_array_equal(read.robot_states, expected)
    np.testing.assert_array_equal(read.robot_actions, expected[1:])
    frames = read.frames["head_camera"].read(range(COUNT))
    assert np.abs(frames.astype(int) - episode.cameras["head_camera"].rgb).mean() < 2.5
    np.testing.assert_array_equal(
        read.cameras["head_camera"].extrinsics, episode.cameras["head_camera"].extrinsic_cv.astype(np.float32)
    )


def test_same_episode_gives_the_same_bytes(tmp_path: Path, episode: RobotwinEpisode) -> None:
    files = [write_robotwin_episode(tmp_path / name, 0, episode).read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]


def test_a_read_episode_can_be_written_again(tmp_path: Path, episode: RobotwinEpisode) -> None:
    write_robotwin_episode(tmp_path / "a", 0, episode)
    first = RobotwinDataset(tmp_path / "a")[0]
    write_robotwin_episode(tmp_path / "b", 0, robotwin_episode_from(first))
    second = RobotwinDataset(tmp_path / "b")[0]
    np.testing.assert_array_equal(second.robot_actions, first.robot_actions)
    for name, matrices in first.cameras.items():
        np.testing.assert_array_equal(second.cameras[name].extrinsics, matrices.extrinsics)
        np.testing.assert_array_equal(second.cameras[name].intrinsics, matrices.intrinsics)
    np.testing.assert_array_equal(second.robot_states, first.robot_states)
    assert second.action_names == first.action_names
    one, other = (e.frames["head_camera"].read(range(COUNT)).astype(int) for e in (first, second))
    assert np.abs(one - other).mean() < 2
    with h5py.File(tmp_path / "b" / "data" / "episode0.hdf5") as file:
        assert list(file["endpose"]) == []
        assert list(file["observation/head_camera"]) == ["extrinsic_cv", "intrinsic_cv", "rgb"]
    with pytest.raises(ValueError, match=r"episode0\.hdf5: cannot become"):
        robotwin_episode_from(replace(first, action_names=tuple("abcdefghijklmnop")))


def test_index_files_have_the_names_and_shapes_of_robotwin(tmp_path: Path) -> None:
    texts = [{"seen": [f"put {i}"], "unseen": [f"set {i}"]} for i in range(2)]
    write_robotwin_index(
        tmp_path, seeds=[4, 9], scene_info=[{"info": {"{a}": "left"}}, {}], instructions=texts
    )
    assert (tmp_path / "seed.txt").read_text() == "4 9 "
    assert json.loads((tmp_path / "scene_info.json").read_text())["episode_0"] == {"info": {"{a}": "left"}}
    assert json.loads((tmp_path / "instructions" / "episode1.json").read_text()) == texts[1]
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []
    with pytest.raises(ValueError, match="1, 0 and 0"):
        write_robotwin_index(tmp_path, seeds=[4], scene_info=[], instructions=[])


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, episode: RobotwinEpisode, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_robotwin_episode(tmp_path, 0, episode)
    before = path.read_bytes()

    def fail(frame: np.ndarray) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("robotwin_adapters.robotwin.write.encode_swapped", fail)
    with pytest.raises(KeyboardInterrupt):
        write_robotwin_episode(tmp_path, 0, episode)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["episode0.hdf5"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left_arm": np.zeros((COUNT + 1, 7))}, "left_arm: expected shape"),
        ({"right_gripper": np.full(COUNT, np.nan)}, "right_gripper: .*not finite"),
        ({"left_gripper": np.full(COUNT, 3.0)}, "left_gripper: expected openings"),
        ({"left_endpose": np.zeros((COUNT, 6))}, "left_endpose: expected shape"),
        ({"right_commanded_endpose": np.zeros((COUNT, 6))}, "right_commanded_endpose: expected shape"),
        ({"cameras": {}}, "at least one camera"),
        ({"cameras": {"head": CameraRecord(np.zeros((COUNT, 8, 8, 3)))}}, "head: expected uint8"),
        ({"cameras": {"head": CameraRecord(np.zeros((COUNT, 8, 8, 4), np.uint8))}}, "head: expected uint8"),
    ],
)
def test_episodes_that_no_robot_could_record_are_refused(
    episode: RobotwinEpisode, changes: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(episode, **changes)
