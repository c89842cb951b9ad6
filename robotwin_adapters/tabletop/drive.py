"""Drives the tabletop by external commands, one action at a time: for policies and people.

An action is a row of a recording: joint targets, or wrist poses that inverse kinematics turns into joint
targets. The targets are interpolated over ACTION_STEPS physics steps, as between two frames of a recording at
half rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Float, UInt8

from robotwin_adapters.actions import POSE_NAMES, ArmLayout
from robotwin_adapters.tabletop.arms import SIDES, TIMESTEP
from robotwin_adapters.tabletop.cameras import CAMERAS, camera_pose, extrinsic_cv, intrinsic_cv
from robotwin_adapters.tabletop.control import SAVE_EVERY, ArmController, Frame
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS, TCP_OFFSET
from robotwin_adapters.tabletop.kinematics import ArmKinematics, ToolPose
from robotwin_adapters.tabletop.record import RecordingConfig
from robotwin_adapters.tabletop.render import Renderer
from robotwin_adapters.tabletop.scene import build_scene
from robotwin_adapters.tabletop.simulate import run_episode
from robotwin_adapters.tabletop.tasks import TASKS, is_success, sample_setup

FRAMES_PER_ACTION = 2  # recorded frames
ACTION_STEPS = FRAMES_PER_ACTION * SAVE_EVERY  # physics steps of one action
ACTION_RATE = 1 / (ACTION_STEPS * TIMESTEP)  # actions per second
TOP_SPEED = 3.0  # times the robot's own joint speed: limits wild commands
IK_ITERATIONS = 25  # starting from the last targets, which are near


@dataclass(frozen=True)
class TabletopState:
    """The simulation state, to be restored later."""

    physics: Float[np.ndarray, " n"]
    arms: dict[str, Float[np.ndarray, " n"]]
    grippers: dict[str, float]


class DrivenTabletop:
    """One scene of a task, set up from a seed and moved by actions.

    The same `seed` and task give the same table as an episode of `worldmodel collect`.
    """

    def __init__(self, config: RecordingConfig, seed: int, *, action_space: str = "pose_commands") -> None:
        if config.randomize or config.renderer != "ray":
            raise ValueError("a driven tabletop has the plain look and the ray renderer")
        self.config, self.seed, self.action_space = config, seed, action_space
        self.robot = EMBODIMENTS[config.embodiment]
        rng = np.random.default_rng([seed, TASKS.index(config.task)])
        self.scene = build_scene(sample_setup(config.task, self.robot, rng))
        self.controller = ArmController(self.scene, lambda *_: None)
        self.controller.settle()
        self._kinematics = {side: ArmKinematics(self.scene, self.scene.arm(side)) for side in SIDES}
        self._renderers = {
            CAMERAS[name].name: Renderer(
                self.scene.model, CAMERAS[name], config.width, config.height, supersample=config.supersample
            )
            for name in config.cameras
        }
        self.frame: Frame = self.controller.frame()

    @property
    def action_names(self) -> tuple[str, ...]:
        """One per column of an action."""
        return action_names(self.config.embodiment, self.action_space)

    @property
    def command(self) -> Float[np.ndarray, " a"]:
        """The last command in the columns of the action; initially the arms' home."""
        return command_row(self.frame, self.action_space)

    def step(self, action: Float[np.ndarray, " a"]) -> bool:
        """Run one action; returns False if a commanded pose was out of reach and only approached."""
        if action.shape != (len(self.action_names),) or not np.isfinite(action).all():
            raise ValueError(f"expected {len(self.action_names)} finite numbers, got {action}")
        arms, grippers, is_reached = self._targets(np.asarray(action, np.float64))
        reach = TOP_SPEED * self.robot.joint_speed / ACTION_RATE
        limited = {
            side: old + np.clip(arms[side] - old, -reach, reach)
            for side, old in self.controller.arm_targets.items()
        }
        self.controller.advance(limited, grippers, ACTION_STEPS)
        self.frame = self.controller.frame()
        return is_reached

    def pictures(self) -> dict[str, UInt8[np.ndarray, "H W 3"]]:
        """Render the current frame of each camera."""
        return {name: renderer.render(self.scene.data) for name, renderer in self._renderers.items()}

    def camera_matrices(self, name: str) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3 4"]]:
        """Current intrinsics (pixels) and extrinsics (world to camera, OpenCV axes) of a camera."""
        camera = self._renderers[name].camera
        pose = camera_pose(camera, self.scene.model, self.scene.data)
        return intrinsic_cv(camera.fovy, self.config.width, self.config.height), extrinsic_cv(pose)

    @property
    def is_success(self) -> bool:
        """Whether the task's success condition holds."""
        return is_success(self.config.task, self.scene, self.controller.gripper_targets)

    @property
    def object_places(self) -> Float[np.ndarray, "2 3"]:
        """Positions of A and B (m, world)."""
        return self.scene.data.xpos[[self.scene.body_a, self.scene.body_b]].copy()

    def tool_places(self) -> dict[str, Float[np.ndarray, " 3"]]:
        """Positions of the fingertip centers (m, world)."""
        return {side: self.scene.data.site_xpos[self.scene.arm(side).tcp_site].copy() for side in SIDES}

    def save(self) -> TabletopState:
        """Copy the current state."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        physics = np.empty(mujoco.mj_stateSize(self.scene.model, kind))
        mujoco.mj_getState(self.scene.model, self.scene.data, physics, kind)
        arms = {side: target.copy() for side, target in self.controller.arm_targets.items()}
        return TabletopState(physics, arms, dict(self.controller.gripper_targets))

    def restore(self, state: TabletopState) -> None:
        """Return to a saved state."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(self.scene.model, self.scene.data, state.physics, kind)
        self.controller.arm_targets = {side: target.copy() for side, target in state.arms.items()}
        self.controller.gripper_targets = dict(state.grippers)
        self.frame = self.controller.frame()

    def _targets(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, float], bool]:
        half = len(action) // 2
        arms, grippers, is_reached = {}, {}, True
        for side, row in zip(SIDES, (action[:half], action[half:]), strict=True):
            arms[side], reached = self._arm_target(side, row[:-1])
            grippers[side] = float(np.clip(row[-1], 0, 1))
            is_reached &= reached
        return arms, grippers, is_reached

    def _arm_target(self, side: str, values: np.ndarray) -> tuple[np.ndarray, bool]:
        arm = self.scene.arm(side)
        if self.action_space == "joint_commands":
            limited = np.clip(values, *arm.limits.T)
            return limited, bool((limited == values).all())
        return self._kinematics[side].approach(
            tool_pose(values), self.controller.arm_targets[side], IK_ITERATIONS
        )


def action_names(embodiment: str, action_space: str) -> tuple[str, ...]:
    """Action columns of a tabletop robot."""
    if action_space != "joint_commands":
        return POSE_NAMES
    joints = EMBODIMENTS[embodiment].joints_per_arm
    return ArmLayout(joints, joints).names


def command_row(frame: Frame, action_space: str) -> Float[np.ndarray, " a"]:
    """The command of a frame in the columns of an action space."""
    if action_space == "joint_commands":
        return frame.vector
    left = np.append(frame.left_commanded_endpose, frame.left_gripper)
    return np.concatenate([left, np.append(frame.right_commanded_endpose, frame.right_gripper)])


def expert_commands(
    task: str, embodiment: str, seed: int, action_space: str = "pose_commands"
) -> Float[np.ndarray, "t a"]:
    """The scripted expert's commands in the scene of this seed, one row per action."""
    rows: list[np.ndarray] = []
    run_episode(
        task,
        EMBODIMENTS[embodiment],
        seed,
        lambda _, frame: rows.append(command_row(frame, action_space)),
    )
    return np.array(rows)[FRAMES_PER_ACTION::FRAMES_PER_ACTION]


def tool_pose(wrist: Sequence[float] | Float[np.ndarray, " 7"]) -> ToolPose:
    """The fingertip pose of a recorded wrist pose; a zero quaternion means no rotation."""
    values = np.asarray(wrist, np.float64)
    norm = np.linalg.norm(values[3:])
    quaternion = values[3:] / norm if norm > 1e-6 else np.array([1.0, 0, 0, 0])
    entries = np.empty(9)
    mujoco.mju_quat2Mat(entries, quaternion)
    rotation = entries.reshape(3, 3)
    return ToolPose(values[:3] + TCP_OFFSET * rotation[:, 0], rotation)
