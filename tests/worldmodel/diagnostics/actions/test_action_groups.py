from pathlib import Path

import pytest

from robotwin_adapters.open_dataset import open_dataset
from worldmodel.diagnostics.actions.action_groups import group_actions, parse_groups

ROBOTS = Path(__file__).parents[4] / "../shared/data/robots"
SO100 = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


def columns(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (
            ("left_joint1", "left_gripper", "right_joint1", "right_gripper"),
            {"left": (0, 1), "right": (2, 3)},
        ),
        (
            ("left_arm_0", "left_hand_0", "neck_0", "right_arm_0", "waist_0", "waist_1"),
            {"left": (0, 1), "neck": (2,), "right": (3,), "waist": (4, 5)},
        ),
        (
            ("x", "y", "z", "roll", "pitch", "yaw", "gripper"),
            {"position": columns(0, 2), "rotation": columns(3, 5), "gripper": (6,)},
        ),
        (
            ("eef_pos_x", "eef_pos_y", "eef_rot_x", "eef_rot_y", "eef_qw", "gripper_opening"),
            {"position": (0, 1), "rotation": (2, 3, 4), "gripper": (5,)},
        ),
        (
            (*(f"joint_{i}_vel" for i in range(6)), "gripper"),
            {"joint vel": columns(0, 5), "gripper": (6,)},
        ),
        (tuple(f"{name}.pos" for name in SO100), {"joints": columns(0, 4), "gripper": (5,)}),
        (("base_x", "base_theta", "right_joint1", "right_joint2"), {"base": (0, 1), "joint": (2, 3)}),
        (("joint1", "joint2", "joint3"), {"joint1": (0,), "joint2": (1,), "joint3": (2,)}),
        (("", "", ""), {"column 0": (0,), "column 1": (1,), "column 2": (2,)}),
    ],
)
def test_groups_come_from_names(names: tuple[str, ...], groups: dict) -> None:
    assert group_actions(names).dimensions == groups


def test_many_columns_without_names_are_taken_in_blocks() -> None:
    found = group_actions([f"motor_{index}" for index in range(44)])
    assert len(found.dimensions) == 8
    assert found.dimensions["columns 0-5"] == columns(0, 5)
    assert [index for group in found.dimensions.values() for index in group] == list(range(44))
    assert "--groups" in found.reason
    assert len(group_actions([f"action_{index}" for index in range(16)]).dimensions) == 16


def test_groups_are_read_from_a_flag() -> None:
    names = [f"action_{index}" for index in range(7)]
    assert parse_groups("arm=0-5,gripper=6", names).dimensions == {"arm": columns(0, 5), "gripper": (6,)}
    assert parse_groups("base = 0, 1 , tool=4-5", names).dimensions == {"base": (0, 1), "tool": (4, 5)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arm", "cannot read 'arm'"),
        ("arm=a-b", "cannot read 'arm=a-b'"),
        ("arm=0,arm=1", "each name once"),
        ("=0-2", "cannot read '=0-2'"),
        ("arm=0-5,gripper=7", r"\[7\] do not exist. The actions have 7 dimensions: 0 action_0, 1 action_1"),
        ("arm=0-5,wrist=4-5", r"\[4, 5\] are named twice"),
        ("arm=5-0", "a range runs backwards"),
    ],
)
def test_unreadable_groups_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_groups(text, [f"action_{index}" for index in range(7)])


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("droid_franka_real/droid_subset", [f"action_{index}" for index in range(7)]),
        ("lerobot_v20_gr1_sim", ["left", "neck", "right", "waist"]),
        ("lerobot_v21_arx_x5_dual", ["left", "right"]),
    ],
)
def test_real_robots_have_groups(name: str, groups: list[str]) -> None:
    if not (ROBOTS / name).is_dir():
        pytest.skip(f"no {name} here")
    episode = open_dataset(ROBOTS / name, verify=False)[0]
    assert list(group_actions(episode.action_names).dimensions) == groups
