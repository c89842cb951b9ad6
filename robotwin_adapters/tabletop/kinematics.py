"""Inverse kinematics of one arm and the joint paths made with it."""

import math
from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Float

from robotwin_adapters.tabletop.arms import TIMESTEP, Arm
from robotwin_adapters.tabletop.scene import Scene

_DAMPING = 0.02  # of the least squares; keeps steps small near stretched-out poses
_MAX_STEP = 0.3  # rad per iteration and joint
_POSITION_TOLERANCE = 1e-4  # m
_ANGLE_TOLERANCE = 1e-3  # rad
_KNOT_SPACING = 0.01  # m between the solved points of a straight path
_PEAK_SPEED = 1.875  # highest slope of the minimum-jerk profile

JointPath = Float[np.ndarray, "steps joints"]


@dataclass(frozen=True)
class ToolPose:
    """Target position of the fingertip center and orientation of the hand."""

    position: Float[np.ndarray, " 3"]  # m, world
    rotation: Float[np.ndarray, "3 3"]  # columns: approach, closing direction, their cross product

    def shifted(self, offset: Float[np.ndarray, " 3"]) -> "ToolPose":
        """The same orientation at a shifted position."""
        return ToolPose(self.position + offset, self.rotation)

    def backed_off(self, distance: float) -> "ToolPose":
        """The same pose moved back by `distance` metres along the approach direction."""
        return self.shifted(-distance * self.rotation[:, 0])


def top_down(position: Float[np.ndarray, " 3"], yaw: float) -> ToolPose:
    """The hand pointing straight down, fingers closing along the direction `yaw` in the table plane."""
    approach = np.array([0.0, 0.0, -1.0])
    closing = np.array([np.cos(yaw), np.sin(yaw), 0.0])
    return ToolPose(position, np.stack([approach, closing, np.cross(approach, closing)], axis=1))


class ArmKinematics:
    """Forward and inverse kinematics of one arm, on a copy of the state that is never stepped."""

    def __init__(self, scene: Scene, arm: Arm) -> None:
        self.model, self.arm = scene.model, arm
        self.robot = scene.spec.embodiment
        self.home = np.array(self.robot.home)
        self._data = mujoco.MjData(scene.model)
        self._base = np.array([scene.spec.embodiment.base_x(arm.side), self.robot.base_y])

    def tool_pose(self, joints: Float[np.ndarray, " n"]) -> ToolPose:
        """Fingertip pose for these joint angles."""
        self._data.qpos[self.arm.joints] = joints
        mujoco.mj_kinematics(self.model, self._data)
        site = self.arm.tcp_site
        return ToolPose(self._data.site_xpos[site].copy(), self._data.site_xmat[site].reshape(3, 3).copy())

    def aimed_home(self, position: Float[np.ndarray, " 3"]) -> Float[np.ndarray, " n"]:
        """The home pose turned about the vertical towards a point: a good initial guess for `solve`."""
        x, y = position[:2] - self._base
        start = self.home.copy()
        start[0] = np.arctan2(-x, y)
        return start

    def easy_yaw(self, position: Float[np.ndarray, " 3"]) -> float:
        """Closing direction of a hand pointing down at this place without any wrist roll (rad)."""
        return float(self.aimed_home(position)[0]) + math.pi

    def nearest_yaw(self, position: Float[np.ndarray, " 3"], line: float) -> float:
        """Of the two opposite closing directions along `line`, the one that rolls the wrist less (rad)."""
        easy = self.easy_yaw(position)
        return easy + half_turn(line - easy)

    def solve(
        self, target: ToolPose, start: Float[np.ndarray, " n"], iterations: int = 80
    ) -> Float[np.ndarray, " n"] | None:
        """Joint angles near `start` that reach the target by damped least squares, or None."""
        joints, is_there = self.approach(target, start, iterations)
        return joints if is_there else None

    def approach(
        self, target: ToolPose, start: Float[np.ndarray, " n"], iterations: int = 80
    ) -> tuple[Float[np.ndarray, " n"], bool]:
        """As `solve`, but returns the closest pose found, and whether the target was reached."""
        joints = start.copy()
        jacobian = np.zeros((6, self.model.nv))
        for _ in range(iterations):
            pose = self.tool_pose(joints)
            error = np.concatenate(
                [target.position - pose.position, _rotation_between(pose.rotation, target.rotation)]
            )
            if np.abs(error[:3]).max() < _POSITION_TOLERANCE and np.abs(error[3:]).max() < _ANGLE_TOLERANCE:
                return joints, True
            mujoco.mj_comPos(self.model, self._data)
            mujoco.mj_jacSite(self.model, self._data, jacobian[:3], jacobian[3:], self.arm.tcp_site)
            own = jacobian[:, self.arm.dofs]
            step = own.T @ np.linalg.solve(own @ own.T + _DAMPING**2 * np.eye(6), error)
            step *= min(1.0, _MAX_STEP / max(np.abs(step).max(), 1e-9))
            joints = np.clip(joints + step, *self.arm.limits.T)
        return joints, False

    def straight_path(self, start: Float[np.ndarray, " n"], target: ToolPose) -> JointPath | None:
        """Joint targets per physics step that move the fingertips along a line at fixed orientation."""
        origin = self.tool_pose(start).position
        distance = float(np.linalg.norm(target.position - origin))
        count = max(2, round(distance / _KNOT_SPACING) + 1)
        knots = [start]
        for share in np.linspace(0, 1, count)[1:]:
            point = ToolPose(origin + share * (target.position - origin), target.rotation)
            solution = self.solve(point, knots[-1])
            if solution is None:
                return None
            knots.append(solution)
        return self._timed(np.array(knots), distance)

    def direct_path(
        self, start: Float[np.ndarray, " n"], goal: Float[np.ndarray, " n"], pace: float = 1.0
    ) -> JointPath:
        """Joint targets per physics step along a line in joint space; `pace` 2 doubles the duration."""
        return self._timed(np.array([start, goal]), 0.0, pace)

    def _timed(self, knots: Float[np.ndarray, "k n"], distance: float, pace: float = 1.0) -> JointPath:
        """Interpolate evenly spaced knots with a minimum-jerk profile within the speed limits."""
        turn = float(np.abs(np.diff(knots, axis=0)).max()) * (len(knots) - 1)
        seconds = pace * _PEAK_SPEED * max(turn / self.robot.joint_speed, distance / self.robot.tool_speed)
        steps = max(1, round(seconds / TIMESTEP))
        time = np.arange(1, steps + 1) / steps
        share = minimum_jerk(time) * (len(knots) - 1)
        return np.stack([np.interp(share, np.arange(len(knots)), column) for column in knots.T], axis=1)


def minimum_jerk(time: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """From 0 to 1 over time 0..1, with zero speed and acceleration at both ends."""
    return time**3 * (10 - 15 * time + 6 * time**2)


def half_turn(angle: float) -> float:
    """The angle modulo pi, between -pi/2 and pi/2: opposite closing directions are equivalent."""
    return (angle + math.pi / 2) % math.pi - math.pi / 2


def _rotation_between(
    now: Float[np.ndarray, "3 3"], wanted: Float[np.ndarray, "3 3"]
) -> Float[np.ndarray, " 3"]:
    """Rotation vector in the world that turns `now` into `wanted`."""
    quaternion, rotation = np.zeros(4), np.zeros(3)
    mujoco.mju_mat2Quat(quaternion, (wanted @ now.T).ravel())
    mujoco.mju_quat2Vel(rotation, quaternion, 1.0)
    return rotation
