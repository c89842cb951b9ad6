"""robomimic, LIBERO and Isaac Lab files as plain h5py wrote them."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import pictures, walk, write_isaac, write_libero, write_robomimic


def test_robomimic(tmp_path: Path) -> None:
    source = open_dataset(write_robomimic(tmp_path / "lift.hdf5", 11))
    assert (describe_format(source), len(source), source.name) == ("robomimic HDF5", 11, "lift")
    assert [source[i].uid for i in (1, 2, 10)] == ["demo_1", "demo_2", "demo_10"]
    episode = source[2]
    assert (episode.fps, episode.embodiment, episode.task) == (10, "Panda", "Lift")
    assert tuple(episode.frames) == ("agentview_image", "robot0_eye_in_hand_image")
    np.testing.assert_array_equal(episode.robot_actions, walk(9, 7, 2).clip(-1, 1)[:-1])
    np.testing.assert_array_equal(episode.robot_states[:, :3], walk(9, 3, 2))
    np.testing.assert_array_equal(episode.frames["agentview_image"].read([8, 1]), pictures(9)[[8, 1]])
    assert episode.action_names[0] == "dx"


def test_absolute_actions_are_named_so_and_not_added_up(tmp_path: Path) -> None:
    changes = open_dataset(write_robomimic(tmp_path / "a.hdf5"))[0]
    targets = open_dataset(write_robomimic(tmp_path / "b.hdf5", delta=False))[0]
    assert changes.delta_actions == changes.action_names[:6]
    assert targets.action_names[0] == "x"
    assert targets.delta_actions == ()


def test_libero_is_turned_upright_and_keeps_its_instruction(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "set/open_the_drawer_demo.hdf5")
    episode = open_dataset(tmp_path / "set")[0]
    assert (episode.uid, episode.instructions) == ("open_the_drawer_demo/demo_0", ("open the drawer",))
    assert (episode.task, episode.fps) == ("open the drawer", 20)
    np.testing.assert_array_equal(episode.frames["agentview_rgb"].read(range(9)), pictures(9))
    assert {"names no rate", "turned upright"} <= {
        words for note in episode.notes for words in ("names no rate", "turned upright") if words in note
    }
    (tmp_path / "as_stored.yaml").write_text("upside_down: false\n")
    stored = open_dataset(path, mapping=tmp_path / "as_stored.yaml")[0]
    np.testing.assert_array_equal(stored.frames["agentview_rgb"].read([0])[0], pictures(9)[0, ::-1])


def test_isaac_lab(tmp_path: Path) -> None:
    episode = open_dataset(write_isaac(tmp_path / "dataset.hdf5"))[0]
    assert (episode.fps, episode.task) == (pytest.approx(50), "Stack-Cube")
    assert tuple(episode.frames) == ("table_cam", "wrist_cam")  # no depth
    assert episode.robot_states.shape == (9, 9)
    assert episode.action_names[7] == "action_7"


def test_a_wrong_count_and_missing_pictures_are_refused(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_1"].attrs["num_samples"] = 12
        del file["data/demo_0/obs"], file["data/demo_0/next_obs"]
    source = open_dataset(path)
    with pytest.raises(ValueError, match="num_samples is 12, but it has 9 frames"):
        _ = source[1]
    with pytest.raises(ValueError, match=r"demo_0: no pictures among its arrays, actions, states"):
        _ = source[0]


@pytest.mark.parametrize("said", ["absolute", "delta"])
def test_controllers_of_robosuite_15(tmp_path: Path, said: str) -> None:
    path = write_robomimic(tmp_path / "demos.hdf5")
    controller = {"type": "BASIC", "body_parts": {"right": {"type": "OSC_POSE", "input_type": said}}}
    with h5py.File(path, "a") as file:
        arguments = json.loads(file["data"].attrs["env_args"])
        arguments["env_kwargs"]["controller_configs"] = controller
        del file["data"].attrs["env_args"]
        file["data"].attrs["env_args"] = json.dumps(arguments)
    episode = open_dataset(path)[0]
    assert episode.action_names[0] == ("x" if said == "absolute" else "dx")
    assert bool(episode.delta_actions) == (said == "delta")


@pytest.mark.parametrize(
    ("mode", "width", "changes"),
    [
        ("pd_ee_delta_pose", 7, ("dx", "dy", "dz", "drx", "dry", "drz")),
        ("pd_ee_pose", 7, ()),
        ("pd_joint_pos", 8, ()),
        ("pd_joint_delta_pos", 8, tuple(f"action_{number}" for number in range(7))),
    ],
)
def test_maniskill_says_its_control_mode_beside_the_file(
    tmp_path: Path, mode: str, width: int, changes: tuple[str, ...]
) -> None:
    """One observation more than actions; the last action is the gripper's, told where to go."""
    with h5py.File(tmp_path / "trajectory.h5", "w") as file:
        for number in range(2):
            group = file.create_group(f"traj_{number}")
            group["actions"], group["obs/agent/qpos"] = walk(8, width, number), walk(9, 9, number)
            group["obs/sensor_data/base_camera/rgb"] = pictures(9)
            group["obs/sensor_data/base_camera/depth"] = pictures(9)[..., :1].astype(np.int16)
    about = {"env_id": "PickCube-v1", "env_kwargs": {"control_mode": mode, "robot_uids": "panda"}}
    (tmp_path / "trajectory.json").write_text(json.dumps({"env_info": about, "episodes": []}))
    episode = open_dataset(tmp_path)[1]
    assert (tuple(episode.frames), episode.task, episode.embodiment) == (("rgb",), "PickCube-v1", "panda")
    assert episode.delta_actions == changes
    np.testing.assert_array_equal(episode.robot_actions, walk(8, width, 1))
    np.testing.assert_array_equal(episode.robot_states, walk(9, 9, 1))


def test_seven_columns_of_an_unknown_file_are_not_taken_for_robosuites_changes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "trajectory.h5", "w") as file:
        file["traj_0/actions"], file["traj_0/obs/rgb"] = walk(9, 7), pictures(9)
    assert open_dataset(tmp_path)[0].action_names[0] == "action_0"
