"""The contents of one RoboTwin episode file of any format, and the option to drop its static frames.

frame / row 0 1 2 ... T-1 row t is the command at frame t robot action 0 1 ... T-2 action i = row i + 1, the
command that leads to frame i + 1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from robotwin_adapters.actions import (
    POSE_NAMES,
    ArmLayout,
    ArmParts,
    check_joints,
    check_poses,
    continuous_poses,
    join_arms,
)
from worldmodel.types import CameraMatrices, FrameReader

ActionSpace = Literal["joint_commands", "pose_commands", "measured_poses"]
COMMANDED_GROUP = "commanded_endpose"  # commanded poses in our own files; RoboTwin's are measured
PHYSICS_HZ = 250
SAVE_EVERY_STEPS = 15  # RoboTwin's save_freq is a number of physics steps, not a frequency
PHYSICAL_FPS = PHYSICS_HZ / SAVE_EVERY_STEPS


class RecordedFrames(FrameReader, Protocol):
    """Frames that can be compared and subsampled."""

    def is_unchanged(self, first: int, second: int, tolerance: float) -> bool:
        """Whether two frames are equal up to a mean difference in gray levels."""
        ...

    def take(self, rows: Sequence[int]) -> "RecordedFrames":
        """Select frames."""
        ...


@dataclass(frozen=True)
class Recording:
    """Validated numbers and frames of one episode, before folder names and JSON files are added."""

    states: Float[ndarray, "t a"]
    actions: Float[ndarray, "t-1 a"]
    names: tuple[str, ...]
    layout: ArmLayout
    action_space: ActionSpace
    frames: Mapping[str, RecordedFrames]
    fps: float = PHYSICAL_FPS
    instructions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cameras: Mapping[str, CameraMatrices] = field(default_factory=dict)  # for cameras that have matrices

    def __post_init__(self) -> None:
        count = len(self.states)
        if count < 2:
            raise ValueError(f"an episode needs at least 2 frames, got {count}")
        for name, frames in self.frames.items():
            if len(frames) != count:
                raise ValueError(f"{name} has {len(frames)} frames, but there are {count} rows of numbers")
        for name, camera in self.cameras.items():
            for matrix in (camera.intrinsics, camera.extrinsics):
                if matrix.ndim == 3 and len(matrix) != count:
                    raise ValueError(f"{name} has matrices of {len(matrix)} frames, but there are {count}")


def joint_rows(parts: ArmParts) -> tuple[Float[ndarray, "t a"], tuple[str, ...]]:
    """Checked joint vectors and their column names."""
    check_joints(parts)
    return join_arms(parts), parts.layout.names


def pose_rows(parts: ArmParts) -> tuple[Float[ndarray, "t 16"], tuple[str, ...]]:
    """Checked [pose, gripper] vectors with continuous quaternions, from parts whose arms are poses."""
    check_poses("left pose", parts.left_arm)
    check_poses("right pose", parts.right_arm)
    smooth = replace(
        parts, left_arm=continuous_poses(parts.left_arm), right_arm=continuous_poses(parts.right_arm)
    )
    return join_arms(smooth), POSE_NAMES


def drop_static(recording: Recording, tolerance: float) -> Recording:
    """Drop frames whose numbers and pictures equal those of the last frame kept.

    RoboTwin saves the same state twice where one motion primitive ends and the next begins. The action that
    leads to a kept frame stays the same, because nothing moved in the dropped frames.
    """
    kept = [0]
    for row in range(1, len(recording.states)):
        last = kept[-1]
        is_static = np.array_equal(recording.states[row], recording.states[last]) and all(
            frames.is_unchanged(last, row, tolerance) for frames in recording.frames.values()
        )
        if not is_static:
            kept.append(row)
    rows = np.array(kept)
    note = f"dropped {len(recording.states) - len(rows)} frames without motion"
    return replace(
        recording,
        states=recording.states[rows],
        actions=recording.actions[rows[1:] - 1],
        frames={name: frames.take(kept) for name, frames in recording.frames.items()},
        cameras={name: _take(camera, rows) for name, camera in recording.cameras.items()},
        notes=(*recording.notes, note),
    )


def _take(camera: CameraMatrices, rows: Int[ndarray, " n"]) -> CameraMatrices:
    """The matrices at these frames; a static camera has the same for all."""
    intrinsics, extrinsics = (
        matrix if matrix.ndim == 2 else matrix[rows] for matrix in (camera.intrinsics, camera.extrinsics)
    )
    return replace(camera, intrinsics=intrinsics, extrinsics=extrinsics)
