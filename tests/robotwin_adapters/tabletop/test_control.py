"""When frames are taken, and what they hold."""

import math

import mujoco
import numpy as np
import pytest

from robotwin_adapters.tabletop.control import ArmController, Frame
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS, TCP_OFFSET
from robotwin_adapters.tabletop.kinematics import ArmKinematics
from robotwin_adapters.tabletop.scene import Scene, build_scene
from robotwin_adapters.tabletop.tasks import sample_setup


class Tape:
    """Keeps every frame with the simulator's clock."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.steps: list[int] = []

    def __call__(self, scene: Scene, frame: Frame) -> None:
        self.frames.append(frame)
        self.steps.append(round(scene.data.time / 0.004))


def controller_with(name: str = "finch") -> tuple[ArmController, Tape]:
    tape = Tape()
    return ArmController(
        build_scene(sample_setup("babble", EMBODIMENTS[name], np.random.default_rng(0))), tape
    ), tape


def test_frames_before_every_15_steps_and_after() -> None:
    controller, tape = controller_with()
    controller.primitive(40, lambda step: None)
    controller.primitive(15, lambda step: None)
    assert tape.steps == [0, 1, 16, 31, 40, 40, 41, 55]
    assert controller.num_frames == 8


def test_a_gripper_action_is_200_steps_of_ramp_and_100_of_hold() -> None:
    controller, tape = controller_with()
    controller.grip("left", 0.0)
    commands = np.array([frame.left_gripper for frame in tape.frames])
    assert len(commands) == 22
    assert tape.steps[-1] == 300
    assert commands[0] == 1.0
    np.testing.assert_allclose(-np.diff(commands[1:15]), 15 / 199)
    np.testing.assert_array_equal(commands[15:], 0.0)
    assert {frame.right_gripper for frame in tape.frames} == {1.0}


def test_fingers_follow_the_command_from_wide_open_to_shut() -> None:
    controller, _ = controller_with("heron")
    scene = controller.scene
    controller.grip("right", 0.5)
    assert scene.data.qpos[scene.right.fingers] == pytest.approx(0.25 * 0.12, abs=1e-3)
    controller.grip("right", 0.0)
    assert scene.data.qpos[scene.right.fingers] == pytest.approx(0.0, abs=1e-3)
    assert scene.data.qpos[scene.left.fingers] == pytest.approx(0.5 * 0.12, abs=1e-3)


@pytest.mark.parametrize("name", EMBODIMENTS)
def test_commands_lead_and_the_arm_follows(name: str) -> None:
    controller, tape = controller_with(name)
    home = np.array(EMBODIMENTS[name].home)
    path = home + 0.3 * (1 - np.cos(np.linspace(0, math.pi, 250)))[:, None] / 2
    controller.move("left", path)
    middle = tape.frames[len(tape.frames) // 2]
    np.testing.assert_array_equal(tape.frames[-1].left_arm, path[-1])
    assert np.all(middle.left_arm_measured < middle.left_arm)
    np.testing.assert_allclose(tape.frames[-1].left_arm_measured, path[-1], atol=0.01)
    np.testing.assert_array_equal([frame.right_arm for frame in tape.frames], [home] * len(tape.frames))


def test_vector_and_end_pose() -> None:
    controller, tape = controller_with("crane")
    controller.settle()
    controller.grip("right", 0.3)
    frame = tape.frames[-1]
    home = EMBODIMENTS["crane"].home
    np.testing.assert_allclose(frame.vector, [*home, 1.0, *home, 0.3])
    w, x, y, z = frame.left_endpose[3:]
    assert math.hypot(w, x, y, z) == pytest.approx(1.0)
    assert w >= 0
    # First column of the rotation by (w x y z): the approach direction, straight down at home.
    approach = np.array([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)])
    np.testing.assert_allclose(approach, [0, 0, -1], atol=0.02)
    tcp = controller.scene.data.site_xpos[controller.scene.left.tcp_site]
    np.testing.assert_allclose(frame.left_endpose[:3] + 0.12 * approach, tcp, atol=1e-6)


def test_recorded_poses_belong_to_the_recorded_joints() -> None:
    controller, tape = controller_with()
    goal = np.array(EMBODIMENTS["finch"].home)
    goal[0] += 0.5
    controller.move("left", np.broadcast_to(goal, (30, 6)))
    fast = tape.frames[1]
    # Turning the base alone turns the hand about it: the planar angle of the wrist is the measured joint.
    x, y = fast.left_endpose[:2] - [-0.28, EMBODIMENTS["finch"].base_y]
    assert math.atan2(-x, y) == pytest.approx(fast.left_arm_measured[0], abs=1e-3)


@pytest.mark.parametrize("name", EMBODIMENTS)
def test_commanded_poses_are_forward_kinematics_of_the_targets(name: str) -> None:
    controller, tape = controller_with(name)
    home = np.array(EMBODIMENTS[name].home)
    path = home + 0.3 * (1 - np.cos(np.linspace(0, math.pi, 250)))[:, None] / 2
    controller.move("left", path)
    arm = ArmKinematics(controller.scene, controller.scene.left)
    for frame in tape.frames[::4]:
        tool, rotation = arm.tool_pose(frame.left_arm), np.zeros(9)
        mujoco.mju_quat2Mat(rotation, frame.left_commanded_endpose[3:])
        np.testing.assert_allclose(rotation.reshape(3, 3), tool.rotation, atol=1e-9)
        wrist = tool.position - TCP_OFFSET * tool.rotation[:, 0]
        np.testing.assert_allclose(frame.left_commanded_endpose[:3], wrist, atol=1e-9)
        assert frame.left_commanded_endpose[3] >= 0


def test_measured_poses_lag_behind_the_commanded_ones() -> None:
    controller, tape = controller_with()
    home = np.array(EMBODIMENTS["finch"].home)
    controller.move("left", home + np.linspace(0, 0.4, 150)[:, None] * np.eye(6)[0])
    controller.grip("left", 1.0)
    commanded = np.array([frame.left_commanded_endpose[:3] for frame in tape.frames])
    measured = np.array([frame.left_endpose[:3] for frame in tape.frames])
    moving = slice(4, 10)
    gap = np.linalg.norm(commanded - measured, axis=1)
    behind = np.linalg.norm(commanded[:-1] - measured[1:], axis=1)  # the command of one frame, 60 ms, ago
    assert gap[moving].min() > 0.003
    assert behind[moving].max() < 0.5 * gap[moving].min()
    assert gap[-1] < 1e-3  # at rest they agree
    np.testing.assert_array_equal(
        tape.frames[0].right_commanded_endpose, tape.frames[9].right_commanded_endpose
    )
