import numpy as np
import pytest
import torch

from robotwin_adapters.actions import POSE_NAMES, ArmLayout
from worldmodel.evaluation.action_edits import CLOSED, HOLD, OPEN, arm_concepts, edit_actions


@pytest.mark.parametrize("names", [POSE_NAMES, ArmLayout(6, 6).names, ArmLayout(7, 7).names])
def test_every_action_of_two_arms_belongs_to_one_concept(names: tuple[str, ...]) -> None:
    concepts = arm_concepts(names)
    assert list(concepts) == ["left_arm", "left_gripper", "right_arm", "right_gripper"]
    assert sorted(column for columns in concepts.values() for column in columns) == list(range(len(names)))
    assert [names[column] for column in concepts["right_gripper"]] == ["right_gripper"]


def test_a_robot_without_sides_has_no_concepts() -> None:
    assert arm_concepts(("x", "y", "gripper")) == {}


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_a_held_arm_goes_on_with_the_command_before_and_nothing_else_changes(kind) -> None:
    actions = kind(np.random.default_rng(0).normal(size=(2, 5, 16)))
    before = kind(np.arange(32.0).reshape(2, 16))
    kept = actions.copy() if isinstance(actions, np.ndarray) else actions.clone()
    edited = edit_actions(actions, POSE_NAMES, {"left_arm": HOLD}, before=before)
    assert (edited[:, :, :7] == before[:, None, :7]).all()
    assert (edited[:, :, 7:] == actions[:, :, 7:]).all()
    assert (actions == kept).all()
    first = edit_actions(actions, POSE_NAMES, {"left_arm": HOLD})
    assert (first[:, :, :7] == actions[:, :1, :7]).all()


def test_edits_of_different_concepts_come_to_the_same_in_either_order() -> None:
    actions = np.random.default_rng(0).normal(size=(5, 16))
    do = {"right_gripper": OPEN, "left_gripper": CLOSED, "right_arm": HOLD}
    there = edit_actions(actions, POSE_NAMES, do)
    back = edit_actions(actions, POSE_NAMES, dict(reversed(do.items())))
    assert (there == back).all()
    assert (there[:, 15] == 1).all()
    assert (there[:, 7] == 0).all()


def test_what_cannot_be_done_is_refused() -> None:
    actions = np.zeros((3, 16))
    with pytest.raises(ValueError, match="no concept tail in these actions; expected left_arm, left_gripper"):
        edit_actions(actions, POSE_NAMES, {"tail": HOLD})
    with pytest.raises(ValueError, match="left_arm: expected a number or 'hold', got 'freeze'"):
        edit_actions(actions, POSE_NAMES, {"left_arm": "freeze"})
