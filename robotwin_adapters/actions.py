"""Joint and pose conventions of two-armed robots, both directions.

A joint vector is [left joints, left gripper, right joints, right gripper]. Arm sizes come from the data:
6 + 6 gives 14 columns, 7 + 7 gives 16. A pose vector is [x y z, quaternion, gripper] per arm: 16.
Quaternions are w x y z here; SciPy and some LeRobot sets use x y z w. Grippers are 1 = open, 0 = closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

POSE_PARTS = ("x", "y", "z", "qw", "qx", "qy", "qz")
MAX_JOINT_RAD = 4 * np.pi  # no arm turns further; larger values are corrupt data or degrees
GRIPPER_RANGE = (-0.05, 1.05)  # opening, with tolerance for rounding


@dataclass(frozen=True)
class ArmLayout:
    """Number of joints of each arm, which determines every column of the joint vector."""

    left_joints: int
    right_joints: int

    @property
    def width(self) -> int:
        """Columns of the vector."""
        return self.left_joints + self.right_joints + 2

    @property
    def gripper_columns(self) -> tuple[int, int]:
        """Left and right gripper."""
        return self.left_joints, self.width - 1

    @property
    def names(self) -> tuple[str, ...]:
        """One name per column: left_joint1 .. left_gripper, right_joint1 .. right_gripper."""
        return tuple(
            name
            for side, count in (("left", self.left_joints), ("right", self.right_joints))
            for name in (*(f"{side}_joint{i}" for i in range(1, count + 1)), f"{side}_gripper")
        )


@dataclass(frozen=True)
class ArmParts:
    """A joint (or pose) vector split into arms and grippers."""

    left_arm: Float[ndarray, "t left"]
    left_gripper: Float[ndarray, " t"]
    right_arm: Float[ndarray, "t right"]
    right_gripper: Float[ndarray, " t"]

    @property
    def layout(self) -> ArmLayout:
        """The sizes of both arms."""
        return ArmLayout(self.left_arm.shape[1], self.right_arm.shape[1])


POSE_NAMES = tuple(f"{side}_{part}" for side in ("left", "right") for part in (*POSE_PARTS, "gripper"))


def layout_from_names(names: Sequence[str]) -> ArmLayout:
    """Layout of a vector in which each arm's columns end with its gripper column, found by name."""
    grippers = [i for i, name in enumerate(names) if "gripper" in name.lower()]
    if len(grippers) != 2 or grippers[1] != len(names) - 1:
        raise ValueError(
            f"expected columns [left joints, left gripper, right joints, right gripper], got {tuple(names)}"
        )
    return ArmLayout(grippers[0], grippers[1] - grippers[0] - 1)


def join_arms(parts: ArmParts) -> Float[ndarray, "t a"]:
    """Concatenate to [left arm, left gripper, right arm, right gripper]."""
    return np.concatenate(
        [parts.left_arm, parts.left_gripper[:, None], parts.right_arm, parts.right_gripper[:, None]], axis=1
    )


def split_arms(vector: Float[ndarray, "t a"], layout: ArmLayout) -> ArmParts:
    """The inverse of `join_arms`."""
    if vector.ndim != 2 or vector.shape[1] != layout.width:
        raise ValueError(f"a vector of {layout} has {layout.width} columns, got shape {vector.shape}")
    left, right = layout.gripper_columns
    return ArmParts(vector[:, :left], vector[:, left], vector[:, left + 1 : right], vector[:, right])


def check_joints(parts: ArmParts) -> None:
    """Refuse angles and openings that no robot could be commanded to."""
    for name, values in (("left_arm", parts.left_arm), ("right_arm", parts.right_arm)):
        if not (np.abs(values) <= MAX_JOINT_RAD).all():
            raise ValueError(f"{name}: expected angles within +-4 pi rad, got {_worst(values)}")
    low, high = GRIPPER_RANGE
    for name, values in (("left_gripper", parts.left_gripper), ("right_gripper", parts.right_gripper)):
        if not ((values >= low) & (values <= high)).all():
            raise ValueError(f"{name}: expected openings in 0 .. 1, got {_worst(values)}")


def check_poses(name: str, poses: Float[ndarray, "t 7"]) -> None:
    """Refuse poses that are not finite or whose quaternions are not rotations."""
    norms = np.linalg.norm(poses[:, 3:], axis=1)
    if not np.isfinite(poses).all() or not (np.abs(norms - 1) < 1e-3).all():
        raise ValueError(f"{name}: expected finite poses with unit quaternions, got norm {_worst(norms)}")


def _worst(values: ndarray) -> float:
    bad = values[~np.isfinite(values)]
    return float(bad[0] if bad.size else values.flat[np.abs(values).argmax()])


def continuous_quaternions(quaternions: Float[ndarray, "t 4"]) -> Float[ndarray, "t 4"]:
    """Choose signs so that neighboring quaternions are close (q and -q are the same rotation)."""
    dots = np.einsum("ij,ij->i", quaternions[1:], quaternions[:-1])
    signs = np.concatenate([[1.0], np.cumprod(np.where(dots < 0, -1.0, 1.0))])
    return quaternions * signs[:, None].astype(quaternions.dtype)


def continuous_poses(poses: Float[ndarray, "t 7"]) -> Float[ndarray, "t 7"]:
    """Poses x y z w x y z whose quaternions have no sign jumps."""
    return np.concatenate([poses[:, :3], continuous_quaternions(poses[:, 3:])], axis=1)
