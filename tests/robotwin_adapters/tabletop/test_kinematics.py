import itertools

import numpy as np
import pytest

from robotwin_adapters.tabletop.arms import TIMESTEP
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.kinematics import ArmKinematics, minimum_jerk, top_down
from robotwin_adapters.tabletop.objects import OBJECTS
from robotwin_adapters.tabletop.scene import TABLE_TOP, Placement, SceneSpec, build_scene


def kinematics(name: str, side: str) -> ArmKinematics:
    spec = SceneSpec(
        EMBODIMENTS[name], OBJECTS[0], OBJECTS[1], Placement(0.0, -0.1, 0.0), Placement(0.2, 0.0, 0.0)
    )
    scene = build_scene(spec)
    return ArmKinematics(scene, scene.arm(side))


@pytest.mark.parametrize("name", EMBODIMENTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_whole_workspace_is_reached_top_down(name: str, side: str) -> None:
    arm = kinematics(name, side)
    sign = -1 if side == "left" else 1
    # Grasps at the table and carrying poses 0.15 m up, over every A and every goal of this arm.
    for x, y, height, line in itertools.product(
        (0.0, 0.12, 0.23), (-0.2, 0.0), (0.025, 0.15), (0.0, 1.0, 2.0)
    ):
        target = np.array([sign * x, y, TABLE_TOP + height])
        pose = top_down(target, arm.nearest_yaw(target, line))
        joints = arm.solve(pose, arm.aimed_home(target))
        assert joints is not None, (x, y, height, line)
        reached = arm.tool_pose(joints)
        np.testing.assert_allclose(reached.position, target, atol=2e-4)
        np.testing.assert_allclose(reached.rotation, pose.rotation, atol=2e-3)
        assert np.all((joints >= arm.arm.limits[:, 0]) & (joints <= arm.arm.limits[:, 1]))


def test_a_straight_arm_reaches_its_length() -> None:
    robot, arm = EMBODIMENTS["finch"], kinematics("finch", "right")
    tip = arm.tool_pose(np.zeros(6)).position
    reach = robot.upper_arm + robot.forearm + 0.12
    np.testing.assert_allclose(tip, [0.28, robot.base_y + reach, robot.shoulder_height], atol=1e-9)


def test_out_of_reach_is_said() -> None:
    arm = kinematics("wren", "left")
    target = np.array([0.5, 0.3, TABLE_TOP])
    assert arm.solve(top_down(target, 0.0), arm.home) is None
    assert arm.straight_path(arm.home, top_down(target, 0.0)) is None


@pytest.mark.parametrize("name", ["heron", "crane"])
def test_straight_paths_are_straight_and_within_the_speed_limits(name: str) -> None:
    arm = kinematics(name, "right")
    target = np.array([0.1, -0.1, TABLE_TOP + 0.13])
    pose = top_down(target, arm.easy_yaw(target))
    start = arm.solve(pose, arm.aimed_home(target))
    assert start is not None
    path = arm.straight_path(start, pose.backed_off(-0.1))
    assert path is not None
    tips = np.array([arm.tool_pose(joints).position for joints in path])
    np.testing.assert_allclose(tips[:, :2], np.broadcast_to(target[:2], (len(tips), 2)), atol=1e-3)
    assert tips[-1, 2] == pytest.approx(TABLE_TOP + 0.03, abs=2e-4)
    assert np.abs(np.diff(path, axis=0)).max() / TIMESTEP <= 1.01 * arm.robot.joint_speed
    assert np.abs(np.diff(tips, axis=0)).max() / TIMESTEP <= 1.05 * arm.robot.tool_speed


def test_pace_stretches_a_path() -> None:
    arm = kinematics("finch", "left")
    goal = arm.home + 0.4
    fast, slow = arm.direct_path(arm.home, goal), arm.direct_path(arm.home, goal, pace=2.0)
    assert len(slow) == pytest.approx(2 * len(fast), abs=1)
    np.testing.assert_allclose(fast[-1], goal)
    np.testing.assert_allclose(slow[-1], goal)


def test_minimum_jerk_starts_and_ends_at_rest() -> None:
    profile = minimum_jerk(np.linspace(0, 1, 1001))
    np.testing.assert_allclose(profile[[0, 500, 1000]], [0.0, 0.5, 1.0], atol=1e-12)
    speed = np.gradient(profile, 0.001)
    assert speed.max() == pytest.approx(1.875, rel=1e-4)
    np.testing.assert_allclose(speed[[0, -1]], 0.0, atol=1e-4)


def test_the_nearer_of_two_closing_directions_is_taken() -> None:
    arm = kinematics("finch", "right")
    position = np.array([0.1, -0.1, 0.8])
    easy = arm.easy_yaw(position)
    for line in np.linspace(-6, 6, 25):
        yaw = arm.nearest_yaw(position, line)
        assert abs(yaw - easy) <= np.pi / 2 + 1e-9
        assert np.sin(yaw - line) == pytest.approx(0.0, abs=1e-9)
