"""Changes and absolute values are told apart by names, by states, by how they run."""

import numpy as np
import pytest

from worldmodel.data.action_deltas import describe_deltas, find_deltas

RNG = np.random.default_rng(3)
PATH = RNG.normal(0, 0.02, (200, 3)).cumsum(0)


@pytest.mark.parametrize(
    "name",
    ["dx", "droll", "delta_yaw", "delta_joint_3", "rel_pos_x", "joint_0_vel", "base.velocity", "left_dz"],
)
def test_names_of_changes(name: str) -> None:
    deltas, reason = find_deltas((name, "gripper"), [(PATH[:, :2], None)])
    assert deltas == (name,)
    assert reason == "by their names"


@pytest.mark.parametrize("name", ["x", "drawer", "joint_3", "door", "level", "relay", "left_gripper", "roll"])
def test_other_names_say_nothing(name: str) -> None:
    assert find_deltas((name,), [(PATH[:, :1], None)]) == ((), "they run smoothly")


def test_an_action_that_follows_the_change_of_the_state_is_a_change() -> None:
    names = ("a", "b", "c")
    changes = np.diff(PATH, axis=0) + RNG.normal(0, 0.004, (199, 3))
    assert find_deltas(names, [(changes, PATH)]) == (names, "they follow the change of the state")
    assert find_deltas(names, [(PATH[1:] + 0.01, PATH)]) == ((), "they follow the state")
    mixed = np.concatenate([changes[:, :2], PATH[1:, 2:]], 1)
    assert find_deltas(names, [(mixed, PATH)])[0] == ("a", "b")


def test_without_states_the_course_decides() -> None:
    jumps = RNG.normal(0, 0.02, (100, 2))
    open_close = np.repeat([0.0, 1.0], 50)[:, None]
    found = find_deltas(("a", "b", "grip"), [(np.concatenate([jumps, open_close], 1), None)])
    assert found == (("a", "b"), "they jump around zero")
    assert find_deltas(("still",), [(np.zeros((9, 1)), None)])[0] == ()


def test_words_for_tables() -> None:
    assert describe_deltas((), ("x",)) == "absolute"
    assert describe_deltas(("x",), ("x",)) == "changes (deltas or velocities)"
    assert describe_deltas(("x",), ("x", "grip")) == "changes (deltas or velocities) in x; absolute in grip"
    assert "not known" in describe_deltas(None, ("x",))
