import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from robotwin_adapters.actions import (
    POSE_NAMES,
    ArmLayout,
    check_joints,
    check_poses,
    continuous_quaternions,
    join_arms,
    layout_from_names,
    split_arms,
)

PI0_NAMES = [
    f"{side}_{joint}"
    for side in ("left", "right")
    for joint in ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
]


def random_poses(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    quaternions = Rotation.random(count, rng).as_quat(scalar_first=True)
    return np.concatenate([rng.normal(size=(count, 3)), quaternions], axis=1)


@pytest.mark.parametrize(
    ("left", "right", "width", "grippers"), [(6, 6, 14, (6, 13)), (7, 7, 16, (7, 15)), (6, 7, 15, (6, 14))]
)
def test_layout_fixes_every_column(left: int, right: int, width: int, grippers: tuple[int, int]) -> None:
    layout = ArmLayout(left, right)
    assert layout.width == len(layout.names) == width
    assert layout.gripper_columns == grippers
    assert [layout.names[i] for i in grippers] == ["left_gripper", "right_gripper"]
    assert (layout.names[0], layout.names[left + 1]) == ("left_joint1", "right_joint1")
    assert layout_from_names(layout.names) == layout


def test_layout_is_found_in_names_of_others() -> None:
    assert layout_from_names(PI0_NAMES) == ArmLayout(6, 6)
    assert layout_from_names(POSE_NAMES) == ArmLayout(7, 7)
    with pytest.raises(ValueError, match="left gripper"):
        layout_from_names(["x", "y", "gripper"])


def test_split_and_join_are_inverse() -> None:
    vector = np.random.default_rng(0).normal(size=(5, 15))
    parts = split_arms(vector, ArmLayout(6, 7))
    assert parts.left_gripper.tolist() == vector[:, 6].tolist()
    assert parts.layout == ArmLayout(6, 7)
    np.testing.assert_array_equal(join_arms(parts), vector)
    with pytest.raises(ValueError, match="15 columns"):
        split_arms(vector[:, 1:], ArmLayout(6, 7))


def test_continuous_quaternions_turn_smoothly_through_w_zero() -> None:
    angles = np.linspace(0, 4 * np.pi, 100)
    smooth = np.stack([np.cos(angles / 2), np.sin(angles / 2), 0 * angles, 0 * angles], axis=1)
    flipped = smooth * np.where(smooth[:, :1] < 0, -1, 1)  # w >= 0, as transforms3d gives them
    assert np.abs(np.diff(flipped, axis=0)).max() > 1
    np.testing.assert_allclose(continuous_quaternions(flipped), smooth, atol=1e-12)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, 13.0, "left_arm.*13"),
        (8, np.nan, "right_arm.*nan"),
        (6, 1.2, "left_gripper.*1.2"),
        (13, -0.1, "right_gripper"),
    ],
)
def test_impossible_commands_are_refused(column: int, value: float, message: str) -> None:
    vector = np.zeros((3, 14))
    check_joints(split_arms(vector, ArmLayout(6, 6)))
    vector[1, column] = value
    with pytest.raises(ValueError, match=message):
        check_joints(split_arms(vector, ArmLayout(6, 6)))


def test_poses_must_be_rotations() -> None:
    poses = random_poses(4, 0)
    check_poses("left pose", poses)
    with pytest.raises(ValueError, match="left pose"):
        check_poses("left pose", poses * 1.1)
