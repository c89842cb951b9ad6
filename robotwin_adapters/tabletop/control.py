"""Executes commands in the simulation and records frames at RoboTwin's times.

primitive | before | step 0 | ... | step 15 | ... | last step | after frame recorded x x x x
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Float

from robotwin_adapters.tabletop.arms import SIDES
from robotwin_adapters.tabletop.kinematics import JointPath
from robotwin_adapters.tabletop.scene import Scene

SAVE_EVERY = 15  # physics steps
SETTLE_STEPS = 500  # objects start 1 mm above the table and come to rest long before this
GRIPPER_RAMP_STEPS, GRIPPER_HOLD_STEPS = 200, 100


@dataclass(frozen=True)
class Frame:
    """The data recorded at one instant: commands and measurements."""

    left_arm: Float[np.ndarray, " n"]  # rad, drive targets
    left_gripper: float  # commanded opening, 1 = open
    right_arm: Float[np.ndarray, " n"]
    right_gripper: float
    left_arm_measured: Float[np.ndarray, " n"]  # rad
    right_arm_measured: Float[np.ndarray, " n"]
    left_endpose: Float[np.ndarray, " 7"]  # measured wrist frame: x y z (m), quaternion w x y z; x = approach
    right_endpose: Float[np.ndarray, " 7"]
    left_commanded_endpose: Float[np.ndarray, " 7"]  # pose of the wrist frame when the arm is at its targets
    right_commanded_endpose: Float[np.ndarray, " 7"]

    @property
    def vector(self) -> Float[np.ndarray, " a"]:
        """The whole command: left arm, left gripper, right arm, right gripper."""
        return np.concatenate([self.left_arm, [self.left_gripper], self.right_arm, [self.right_gripper]])


OnFrame = Callable[[Scene, Frame], None]


class ArmController:
    """Drives the servos of a scene and calls `on_frame` whenever a frame is due."""

    def __init__(self, scene: Scene, on_frame: OnFrame) -> None:
        self.scene, self.on_frame = scene, on_frame
        self.num_frames = 0
        self.arm_targets = {side: np.array(scene.spec.embodiment.home) for side in SIDES}
        self.gripper_targets = dict.fromkeys(SIDES, 1.0)
        self._commanded = mujoco.MjData(scene.model)  # arms at their targets; never stepped

    def settle(self) -> None:
        """Step until objects come to rest, without recording."""
        self._apply()
        for _ in range(SETTLE_STEPS):
            mujoco.mj_step(self.scene.model, self.scene.data)

    def move(self, side: str, path: JointPath) -> None:
        """One primitive: follow a joint path with one arm."""

        def command(step: int) -> None:
            self.arm_targets[side] = path[step]

        self.primitive(len(path), command)

    def grip(self, side: str, opening: float) -> None:
        """One primitive: ramp one gripper's command to `opening`, then hold."""
        ramp = np.linspace(self.gripper_targets[side], opening, GRIPPER_RAMP_STEPS)

        def command(step: int) -> None:
            self.gripper_targets[side] = float(ramp[min(step, GRIPPER_RAMP_STEPS - 1)])

        self.primitive(GRIPPER_RAMP_STEPS + GRIPPER_HOLD_STEPS, command)

    def primitive(self, steps: int, command: Callable[[int], None]) -> None:
        """Run `command(step)` before each physics step; record before, every 15 steps, and after."""
        self._record()
        for step in range(steps):
            command(step)
            self._apply()
            mujoco.mj_step(self.scene.model, self.scene.data)
            if step % SAVE_EVERY == 0:
                self._record()
        self._record()

    def advance(
        self, arms: Mapping[str, Float[np.ndarray, " n"]], grippers: Mapping[str, float], steps: int
    ) -> None:
        """Interpolate from the old targets to new ones over `steps` physics steps, without recording."""
        old_arms, old_grippers = dict(self.arm_targets), dict(self.gripper_targets)
        for share in np.arange(1, steps + 1) / steps:
            for side in SIDES:
                self.arm_targets[side] = old_arms[side] + share * (arms[side] - old_arms[side])
                self.gripper_targets[side] = float(
                    old_grippers[side] + share * (grippers[side] - old_grippers[side])
                )
            self._apply()
            mujoco.mj_step(self.scene.model, self.scene.data)

    def frame(self) -> Frame:
        """The current frame."""
        # mj_step advances positions one step beyond the body and site poses computed from them.
        mujoco.mj_kinematics(self.scene.model, self.scene.data)
        for side in SIDES:
            self._commanded.qpos[self.scene.arm(side).joints] = self.arm_targets[side]
        mujoco.mj_kinematics(self.scene.model, self._commanded)
        left, right = self.scene.left, self.scene.right
        return Frame(
            left_arm=self.arm_targets["left"].copy(),
            left_gripper=self.gripper_targets["left"],
            right_arm=self.arm_targets["right"].copy(),
            right_gripper=self.gripper_targets["right"],
            left_arm_measured=self.scene.data.qpos[left.joints],
            right_arm_measured=self.scene.data.qpos[right.joints],
            left_endpose=_end_pose(self.scene.data, left.wrist_site),
            right_endpose=_end_pose(self.scene.data, right.wrist_site),
            left_commanded_endpose=_end_pose(self._commanded, left.wrist_site),
            right_commanded_endpose=_end_pose(self._commanded, right.wrist_site),
        )

    def _apply(self) -> None:
        half_opening = self.scene.spec.embodiment.gripper_opening / 2
        for side in SIDES:
            arm = self.scene.arm(side)
            self.scene.data.ctrl[arm.actuators] = self.arm_targets[side]
            self.scene.data.ctrl[arm.finger_actuators] = self.gripper_targets[side] * half_opening

    def _record(self) -> None:
        self.num_frames += 1
        self.on_frame(self.scene, self.frame())


def _end_pose(data: mujoco.MjData, site: int) -> Float[np.ndarray, " 7"]:
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, data.site_xmat[site])
    sign = -1.0 if quaternion[0] < 0 else 1.0
    return np.concatenate([data.site_xpos[site], sign * quaternion])
