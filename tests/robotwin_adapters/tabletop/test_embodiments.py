from dataclasses import replace

import pytest

from robotwin_adapters.tabletop.embodiments import EMBODIMENTS


def test_arms_have_the_joints_of_robotwin() -> None:
    joints = {name: robot.joints_per_arm for name, robot in EMBODIMENTS.items()}
    assert joints == {"finch": 6, "heron": 6, "wren": 6, "crane": 7, "swift": 6}


def test_names_match_keys() -> None:
    assert all(robot.name == name for name, robot in EMBODIMENTS.items())


def test_embodiments_differ_in_build_and_looks() -> None:
    robots = list(EMBODIMENTS.values())
    for field in ("upper_arm", "link_radius", "base_spacing", "upper_rgba", "finger_rgba", "home"):
        assert len({getattr(robot, field) for robot in robots}) == len(robots), field
    assert min(robot.link_radius for robot in robots) >= 0.025


def test_link_offsets_add_up_to_the_arm() -> None:
    for robot in EMBODIMENTS.values():
        assert len(robot.link_offsets) == robot.joints_per_arm
        assert sum(robot.link_offsets) == pytest.approx(robot.upper_arm + robot.forearm)


def test_wrong_joint_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="joints_per_arm is one of"):
        replace(EMBODIMENTS["finch"], joints_per_arm=5)
    with pytest.raises(ValueError, match="6 angles for 7 joints"):
        replace(EMBODIMENTS["finch"], joints_per_arm=7)
