import mujoco
import numpy as np
import pytest

from robotwin_adapters.robotwin.dataset import RobotwinDataset
from robotwin_adapters.tabletop.cameras import DESK, camera_pose, extrinsic_cv, intrinsic_cv
from robotwin_adapters.tabletop.collect import collect_all
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.record import RecordingConfig
from robotwin_adapters.tabletop.simulate import run_episode
from worldmodel.locator.truth import (
    label_episode,
    object_in_frames,
    object_path,
    project,
    tool_centers,
)

HALF_TURN = np.sqrt(0.5)


def test_projection_of_a_camera_that_can_be_done_by_hand():
    # At the origin, looking along +z: 100 pixels of focal length, center (32, 24).
    intrinsic = np.array([[[100.0, 0, 32], [0, 100, 24], [0, 0, 1]]]).repeat(3, 0)
    extrinsic = np.eye(3, 4)[None].repeat(3, 0)
    pixels, depth = project(np.array([[0, 0, 2.0], [0.2, -0.1, 2.0], [0, 0, -1.0]]), intrinsic, extrinsic)
    assert pixels[:2] == pytest.approx(np.array([[32, 24], [42, 19]]))
    assert depth.tolist() == [2, 2, -1]


def test_robotwins_own_head_camera():
    # The matrices that RoboTwin stores for its head camera at 320x240; the point lies 1 m ahead of it.
    extrinsic = np.array([[[1, 0, 0, 0.032], [0, -0.8, -0.6, 0.45], [0, 0.6, -0.8, 1.35]]])
    intrinsic = np.array([[[358.642, 0, 160], [0, 358.642, 120], [0, 0, 1]]])
    ahead = np.array([[-0.032, -0.45 + 0.6, 1.35 - 0.8]])
    pixels, depth = project(ahead, intrinsic, extrinsic)
    assert pixels[0] == pytest.approx([160, 120], abs=1e-6)
    assert depth[0] == pytest.approx(1.0)
    right = project(ahead + np.array([0.1, 0, 0]), intrinsic, extrinsic)[0]
    assert right[0] == pytest.approx([195.8642, 120])


@pytest.mark.parametrize(
    ("quaternion", "approach"),
    [
        ((1, 0, 0, 0), (1, 0, 0)),
        ((HALF_TURN, 0, 0, HALF_TURN), (0, 1, 0)),  # a quarter turn about z
        ((HALF_TURN, 0, HALF_TURN, 0), (0, 0, -1)),  # pitched down
        ((-2, 0, 0, 0), (1, 0, 0)),  # sign and length do not matter
    ],
)
def test_fingertips_are_12_cm_along_the_approach_direction(quaternion, approach):
    pose = np.array([[0.1, 0.2, 0.3, *quaternion]])
    assert tool_centers(pose)[0] == pytest.approx(np.array([0.1, 0.2, 0.3]) + 0.12 * np.array(approach))


@pytest.mark.parametrize("robot", ["finch", "crane"])
def test_poses_lead_to_the_simulators_own_fingertips(robot):
    stored, true, pixels = [], [], []

    def look(scene, frame):
        if len(stored) < 40:
            stored.append(np.stack([frame.left_endpose, frame.right_endpose]))
            copy = mujoco.MjData(scene.model)
            copy.qpos[:] = scene.data.qpos
            mujoco.mj_kinematics(scene.model, copy)
            true.append(np.stack([copy.site_xpos[arm.tcp_site] for arm in (scene.left, scene.right)]))
            pixels.append(camera_pose(DESK, scene.model, copy))

    run_episode("babble", EMBODIMENTS[robot], 3, look)
    poses, sites = np.array(stored), np.array(true)
    for arm in range(2):
        assert tool_centers(poses[:, arm]) == pytest.approx(sites[:, arm], abs=2e-3)  # one physics step apart
    intrinsic = np.repeat(intrinsic_cv(DESK.fovy, 64, 64)[None], len(poses), 0)
    extrinsic = np.array([extrinsic_cv(pose) for pose in pixels])
    ours = project(tool_centers(poses[:, 0]), intrinsic, extrinsic)[0]
    exact = project(sites[:, 0], intrinsic, extrinsic)[0]
    assert np.abs(ours - exact).max() < 0.3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tabletop")
    config = RecordingConfig("place_a2b_left", "finch", width=32, height=32, supersample=False)
    collect_all(folder, [config], episodes=1, seed=0, workers=1)
    return folder


def test_labels_of_a_recorded_episode(recorded):
    dataset = RobotwinDataset(recorded, cameras=("desk_camera",), action_space="measured_poses")
    small, large = (label_episode(dataset, 0, "desk_camera", size, 5) for size in ((32, 32), (64, 96)))
    assert small.embodiment == "finch"
    assert small.frames.shape == (5, 3, 32, 32)
    assert large.points == pytest.approx(small.points * [3, 2])  # labels grow with the picture
    assert small.is_known.all()
    assert small.is_visible[:, 2].all()  # the object stays on the table
    assert not (small.is_visible & ((small.points < 0) | (small.points >= 32)).any(2)).any()
    # The object is a strongly colored thing on a gray table: its place shows color, a far one does not.
    x, y = small.points[0, 2].astype(int)
    color = np.ptp(small.frames[0, :, y, x].astype(int))
    assert color > 60
    assert np.ptp(small.frames[0, :, 30, 30 if x < 16 else 2].astype(int)) < 30


def test_the_simulated_object_moves_with_the_gripper_that_carries_it(recorded):
    dataset = RobotwinDataset(recorded, cameras=("desk_camera",), action_space="measured_poses")
    path = object_path(dataset[0].source)
    assert len(path) == dataset[0].num_frames
    grippers = dataset[0].robot_states.astype(np.float64)
    moving = np.linalg.norm(np.diff(path, axis=0), axis=1) > 4e-3
    assert moving.sum() > 10
    distances = [
        np.linalg.norm(tool_centers(grippers[1:, first : first + 7]) - path[1:], axis=1)[moving].max()
        for first in (0, 8)
    ]
    assert min(distances) < 0.1
    assert max(distances) > 0.3


def test_the_object_in_recorded_frames_is_where_the_labels_have_it(recorded):
    dataset = RobotwinDataset(recorded, cameras=("desk_camera",), action_space="measured_poses")
    labels = label_episode(dataset, 0, "desk_camera", (64, 96), 2)  # the first and the last frame
    frames = (0, dataset[0].num_frames - 1)
    pixels, is_visible = object_in_frames(dataset[0].source, "desk_camera", frames, (64, 96))
    assert pixels == pytest.approx(labels.points[:, 2])
    assert is_visible.all()
    assert object_in_frames(str(recorded / "elsewhere.hdf5"), "desk_camera", frames, (64, 96)) is None


def test_data_of_other_origin_has_no_object_path(tmp_path):
    assert object_path(str(tmp_path / "data" / "episode0.hdf5")) is None
