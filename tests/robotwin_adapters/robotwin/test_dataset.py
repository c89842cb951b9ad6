import json
import multiprocessing
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.robotwin.dataset import RobotwinDataset, find_robotwin
from robotwin_adapters.storage import FolderFiles
from worldmodel.data.clips import ClipConfig
from worldmodel.training.datasets import DataConfig, open_index
from worldmodel.types import Episode

FPS = 250 / 15


def image_error(episode: Episode, camera: str, frames: np.ndarray) -> float:
    return float(np.abs(episode.frames[camera].read(range(len(frames))).astype(int) - frames).mean())


@pytest.mark.parametrize(("joints", "width"), [(6, 14), (7, 16)])
def test_legacy_episode(tmp_path: Path, robotwin_files, joints: int, width: int) -> None:
    folder = tmp_path / "place_a2b_left" / "aloha-agilex_clean_50"
    robotwin_files.write_legacy(folder / "data" / "episode0.hdf5", left=joints, right=joints)
    episode = RobotwinDataset(folder)[0]
    vector = robotwin_files.vector_of(robotwin_files.draw_joints(8, joints, joints)).astype(np.float32)
    np.testing.assert_array_equal(episode.robot_states, vector)
    np.testing.assert_array_equal(episode.robot_actions, vector[1:])
    assert episode.robot_actions.dtype == np.float32
    assert len(episode.action_names) == width
    assert episode.action_names[joints] == "left_gripper"
    assert (episode.uid, episode.task, episode.fps) == ("data/episode0", "place_a2b_left", pytest.approx(FPS))
    assert set(episode.frames) == {"head_camera", "left_camera"}
    assert episode.frames["head_camera"].size == (48, 64)
    assert image_error(episode, "head_camera", robotwin_files.draw_frames(8)) < 2.5
    assert any("commanded" in note for note in episode.notes)


def test_frames_come_in_the_order_asked_for(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5")
    reader = RobotwinDataset(tmp_path)[0].frames["head_camera"]
    every = reader.read(range(8))
    np.testing.assert_array_equal(reader.read([5, 0, 5, 7]), every[[5, 0, 5, 7]])
    assert reader.read([]).shape == (0, 48, 64, 3)
    with pytest.raises(IndexError):
        reader.read([8])


def test_colors_are_decided_buffer_by_buffer(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5", standard=lambda i: i % 3 == 0)
    episode = RobotwinDataset(tmp_path)[0]
    assert image_error(episode, "head_camera", robotwin_files.draw_frames(8)) < 2.5


@pytest.mark.parametrize("extrinsics", ["extrinsics_matrix", "extrinsic_matrix"])
@pytest.mark.parametrize("converted", [False, True])
def test_xpolicylab_episode(tmp_path: Path, robotwin_files, extrinsics: str, converted: bool) -> None:
    # The aloha head camera: at (-0.032, -0.45, 1.35), forward (0, 0.6, -0.8), left (-1, 0, 0).
    head_pose = np.array([[1, 0, 0, -0.032], [0, 0.8, -0.6, -0.45], [0, 0.6, 0.8, 1.35], [0, 0, 0, 1]])
    folder = tmp_path / "RoboTwin" / "place_a2b_right" / "arx_x5"
    robotwin_files.write_xpolicylab(
        folder / "data" / "episode_0000000.hdf5",
        extrinsics=extrinsics,
        converted=converted,
        standard=lambda i: i >= 4,
        head_pose=head_pose,
    )
    episode = RobotwinDataset(folder)[0]
    vector = robotwin_files.vector_of(robotwin_files.draw_joints(8)).astype(np.float32)
    np.testing.assert_array_equal(episode.robot_states, vector[:-1])
    np.testing.assert_array_equal(episode.robot_actions, vector[1:-1])
    assert (episode.embodiment, episode.task, episode.fps) == (
        "ARX-X5",
        "place_a2b_right",
        pytest.approx(FPS),
    )
    assert set(episode.frames) == {"head_camera", "left_camera"}
    assert image_error(episode, "left_camera", robotwin_files.draw_frames(8)[:7]) < 2.5
    assert episode.instructions == ("put it left", "move it left")
    expected = [[1, 0, 0, 0.032], [0, -0.8, -0.6, 0.45], [0, 0.6, -0.8, 1.35]]
    np.testing.assert_allclose(episode.cameras["head_camera"].extrinsics, expected, atol=1e-6)
    assert episode.cameras["head_camera"].size == (48, 64)


def test_v1_episode(tmp_path: Path, robotwin_files) -> None:
    folder = tmp_path / "block_hammer_beat_D435_pkl"
    robotwin_files.write_v1(folder / "episode0", count=12)
    episode = RobotwinDataset(tmp_path)[0]
    vector = robotwin_files.vector_of(robotwin_files.draw_joints(12))
    np.testing.assert_allclose(episode.robot_states, vector, atol=1e-6)
    np.testing.assert_array_equal(episode.robot_actions, episode.robot_states[1:])
    np.testing.assert_array_equal(
        episode.frames["head_camera"].read([11, 2]), robotwin_files.draw_frames(12)[[11, 2]]
    )
    assert (episode.embodiment, episode.task) == ("aloha-agilex", "block_hammer_beat")
    assert any("0.045" in note for note in episode.notes)


def test_episodes_are_sorted_by_number(tmp_path: Path, robotwin_files) -> None:
    for number in (10, 9, 2, 100):
        robotwin_files.write_legacy(tmp_path / "data" / f"episode{number}.hdf5", count=3)
    dataset = RobotwinDataset(tmp_path)
    assert [dataset[i].uid for i in range(len(dataset))] == [f"data/episode{n}" for n in (2, 9, 10, 100)]


def test_every_root_below_a_folder_is_found_and_hidden_files_are_not(tmp_path: Path, robotwin_files) -> None:
    doubled = tmp_path / "stack_blocks" / "ur5_clean_50" / "ur5_clean_50" / "data"
    robotwin_files.write_legacy(doubled / "episode0.hdf5", count=3)
    robotwin_files.write_legacy(
        tmp_path / "lift_pot" / "Franka-Panda_clean_50" / "data" / "episode0.hdf5", count=3
    )
    for hidden in (".cache/episode0.hdf5", ".episode1.hdf5.77.writing", "_traj_data/episode0.pkl"):
        path = doubled.parent / hidden
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no episode")
    dataset = RobotwinDataset(tmp_path)
    assert len(dataset) == 2
    told = [(dataset[i].task, dataset[i].embodiment) for i in range(2)]
    assert told == [("lift_pot", "franka-panda"), ("stack_blocks", "ur5-wsg")]


@pytest.mark.parametrize(
    ("folder", "embodiment", "task"),
    [
        ("click_bell/aloha-agilex_randomized_500", "aloha-agilex", "click_bell"),
        ("click_bell/arx-x5_clean_50", "ARX-X5", "click_bell"),
        ("click_bell/franka_clean_50", "franka-panda", "click_bell"),
        ("click_bell/Piper_clean_50", "piper", "click_bell"),
        ("demo_clean/click_bell/aloha_agilex", "aloha-agilex", "click_bell"),
        ("click_bell/demo_clean", "unknown_6_6", "click_bell"),
        ("click_bell/ur50_set", "unknown_6_6", "click_bell"),
    ],
)
def test_folder_names_tell_robot_and_task(
    tmp_path: Path, robotwin_files, folder: str, embodiment: str, task: str
) -> None:
    robotwin_files.write_legacy(tmp_path / folder / "data" / "episode0.hdf5", count=3)
    for opened in (tmp_path, tmp_path / folder, tmp_path / folder / "data" / "episode0.hdf5"):
        episode = RobotwinDataset(opened)[0]
        assert (episode.embodiment, episode.task) == (embodiment, task)


def test_side_files(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_legacy(tmp_path / "data" / "episode1.hdf5", count=3)
    (tmp_path / "instructions").mkdir()
    texts = {"seen": ["put it left"], "unseen": ["left, please"]}
    (tmp_path / "instructions" / "episode1.json").write_text(json.dumps(texts))
    (tmp_path / "scene_info.json").write_text(json.dumps({"episode_1": {"task": "babble", "info": {}}}))
    (tmp_path / "collect.json").write_text(
        json.dumps({"settings": {"embodiment": "finch", "task": "x", "fps": 20}})
    )
    episode = RobotwinDataset(tmp_path)[0]
    assert (episode.embodiment, episode.task, episode.fps) == ("finch", "babble", 20.0)
    assert episode.instructions == ("put it left",)


def test_end_effector_space(tmp_path: Path, robotwin_files) -> None:
    poses, joints = robotwin_files.draw_poses(8), robotwin_files.draw_joints(8)
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5")
    robotwin_files.write_xpolicylab(tmp_path / "data" / "episode_0000001.hdf5")
    dataset = RobotwinDataset(tmp_path, action_space="measured_poses")
    expected = np.concatenate(
        [poses, joints["left_gripper"][:, None], poses, joints["right_gripper"][:, None]], 1
    )
    np.testing.assert_allclose(dataset[0].robot_states, expected, atol=1e-6)
    np.testing.assert_allclose(dataset[1].robot_states, expected[:-1], atol=1e-6)
    np.testing.assert_array_equal(dataset[1].robot_actions, dataset[1].robot_states[1:])
    assert dataset[0].action_names[3:8] == ("left_qw", "left_qx", "left_qy", "left_qz", "left_gripper")


def test_empty_endpose_is_fine_for_joints_only(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5", poses=False)
    assert RobotwinDataset(tmp_path)[0].num_frames == 8
    with pytest.raises(ValueError, match=r"episode0\.hdf5: /endpose/left_endpose is missing"):
        RobotwinDataset(tmp_path, action_space="measured_poses")[0]


def test_static_frames_are_dropped_and_actions_stay_with_their_frames(tmp_path: Path, robotwin_files) -> None:
    moments = [0, 0, 1, 2, 2, 2, 3]  # which moment each recorded frame shows
    frames = robotwin_files.draw_frames(4)[moments]
    joints = {name: values[moments] for name, values in robotwin_files.draw_joints(4).items()}
    frames[4, :16, 40:56] = 255  # commands stand still here, but something moves in the picture
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5", count=7, frames=frames, joints=joints)
    episode = RobotwinDataset(tmp_path, static_tolerance=0.0)[0]
    kept = [0, 2, 3, 4, 5, 6]
    vector = robotwin_files.vector_of(joints).astype(np.float32)
    np.testing.assert_array_equal(episode.robot_states, vector[kept])
    np.testing.assert_array_equal(episode.robot_actions, vector[kept[1:]])
    assert image_error(episode, "head_camera", frames[kept]) < 2.5
    assert "dropped 1 frames without motion" in episode.notes
    loose = RobotwinDataset(tmp_path, static_tolerance=100.0)[0]
    np.testing.assert_array_equal(loose.robot_states, vector[[0, 2, 3, 6]])
    # And so a training config reaches it.
    data = DataConfig(paths=(str(tmp_path),), static_tolerance=0.0, clip=ClipConfig(num_frames=5))
    index = open_index(data)
    assert index.open(index.records[0]).num_frames == 6


def test_opening_decodes_nothing(tmp_path: Path, robotwin_files, monkeypatch: pytest.MonkeyPatch) -> None:
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5")

    def fail(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("robotwin_adapters.robotwin.jpeg_frames.decode_rgb", fail)
    episode = RobotwinDataset(tmp_path, static_tolerance=0.0)[0]
    with pytest.raises(AssertionError, match="decoded"):
        episode.frames["head_camera"].read([0])


def test_the_files_of_a_folder_are_parsed_once(
    tmp_path: Path, robotwin_files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / f"robot{number}" for number in range(12)]
    for folder in folders:
        robotwin_files.write_legacy(folder / "data" / "episode0.hdf5", count=3)
        (folder / "scene_info.json").write_text(json.dumps({"episode_0": {"task": folder.name}}))
        (folder / "instructions").mkdir()
        (folder / "instructions/episode0.json").write_text(json.dumps({"seen": ["go"], "unseen": ["go"]}))
    datasets = [RobotwinDataset(folder) for folder in folders]
    assert [dataset[0].task for dataset in datasets] == [folder.name for folder in folders]

    def fail(self: FolderFiles, name: str, limit: int) -> bytes:
        assert name.startswith("instructions"), name
        return b'{"seen": ["go"], "unseen": ["go"]}'

    monkeypatch.setattr(FolderFiles, "read", fail)
    assert [dataset[0].task for dataset in datasets] == [folder.name for folder in folders]


def read_mean(episode: Episode) -> float:
    return float(episode.frames["head_camera"].read([3]).mean())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_episodes_travel_to_other_processes(tmp_path: Path, robotwin_files, method: str) -> None:
    robotwin_files.write_legacy(tmp_path / "set" / "data" / "episode0.hdf5")
    shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "set")
    episodes = [RobotwinDataset(path)[0] for path in (tmp_path / "set", tmp_path / "set.zip")]
    expected = [read_mean(episode) for episode in episodes]
    # Plain arithmetic in the children: functions of a test module cannot be imported by a spawned process.
    readers = [pickle.loads(pickle.dumps(episode.frames["head_camera"])) for episode in episodes]
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        frames = [future.result() for future in [pool.submit(reader.read, [3]) for reader in readers * 4]]
    assert [float(frame.mean()) for frame in frames] == expected * 4


def test_a_file_that_changes_under_the_reader_is_noticed(tmp_path: Path, robotwin_files) -> None:
    path = tmp_path / "data" / "episode0.hdf5"
    robotwin_files.write_legacy(path)
    episode = RobotwinDataset(tmp_path)[0]
    robotwin_files.write_legacy(path, count=9)
    with pytest.raises(ValueError, match="changed since"):
        episode.frames["head_camera"].read([0])
    assert RobotwinDataset(tmp_path)[0].num_frames == 9


def test_chunked_and_compressed_files_of_others_are_read_too(tmp_path: Path, robotwin_files) -> None:
    path = tmp_path / "data" / "episode0.hdf5"
    robotwin_files.write_legacy(path)
    before = RobotwinDataset(tmp_path)[0].frames["head_camera"].read(range(8))
    with h5py.File(path, "a") as file:
        jpegs = file["observation/head_camera/rgb"][()]
        del file["observation/head_camera/rgb"]
        file.create_dataset("observation/head_camera/rgb", data=jpegs, chunks=(2,), compression="gzip")
    np.testing.assert_array_equal(RobotwinDataset(tmp_path)[0].frames["head_camera"].read(range(8)), before)


def test_find_robotwin(tmp_path: Path, robotwin_files) -> None:
    assert not find_robotwin(tmp_path)
    assert not find_robotwin(tmp_path / "nothing")
    (tmp_path / "other.json").write_text("{}")
    assert not find_robotwin(tmp_path / "other.json")
    robotwin_files.write_v1(tmp_path / "v1" / "task_D435_pkl" / "episode0", count=2)
    robotwin_files.write_legacy(tmp_path / "a" / "data" / "episode0.hdf5", count=2)
    shutil.make_archive(str(tmp_path / "z"), "zip", tmp_path / "a")
    for found in ("v1", "a", "z.zip", "a/data/episode0.hdf5"):
        assert find_robotwin(tmp_path / found), found


def test_cameras_come_with_the_episode(tmp_path: Path, robotwin_files) -> None:
    path = tmp_path / "data" / "episode0.hdf5"
    robotwin_files.write_legacy(path, count=8, cameras=("head_camera", "left_camera", "front_camera"))
    moving = np.tile(np.eye(4, dtype=np.float32)[:3], (8, 1, 1))
    moving[:, 0, 3] = np.arange(8)
    with h5py.File(path, "a") as file:
        file["observation/left_camera/extrinsic_cv"][...] = moving
        del file["observation/front_camera/intrinsic_cv"]
    episode = RobotwinDataset(tmp_path)[0]
    assert set(episode.cameras) == {"head_camera", "left_camera"}
    assert episode.cameras["head_camera"].extrinsics.shape == (3, 4)  # stands still: once for all frames
    np.testing.assert_array_equal(episode.cameras["left_camera"].extrinsics, moving)
    assert episode.cameras["left_camera"].size == (48, 64)
    with h5py.File(path, "a") as file:
        del file["observation/left_camera/extrinsic_cv"]
        file["observation/left_camera/extrinsic_cv"] = moving[:5]
    with pytest.raises(ValueError, match=r"episode0\.hdf5: left_camera has matrices of 5 frames"):
        RobotwinDataset(tmp_path)[0]


def test_dropped_frames_take_their_cameras_along(tmp_path: Path, robotwin_files) -> None:
    path = tmp_path / "data" / "episode0.hdf5"
    joints = {name: values.repeat(2, 0) for name, values in robotwin_files.draw_joints(4).items()}
    robotwin_files.write_legacy(
        path, count=8, frames=robotwin_files.draw_frames(4).repeat(2, 0), joints=joints
    )
    with h5py.File(path, "a") as file:
        file["observation/left_camera/extrinsic_cv"][:, 0, 3] = np.arange(8)
    episode = RobotwinDataset(tmp_path, static_tolerance=0.0)[0]
    assert episode.num_frames == 4
    assert episode.cameras["left_camera"].extrinsics[:, 0, 3].tolist() == [0, 2, 4, 6]
