"""Kinds of robot actions: joints or poses, commanded or measured."""

import re
from collections.abc import Iterable, Sequence

ACTION_SPACES = {
    "joint_commands": "joint targets that were commanded",
    "pose_commands": "end-effector poses that were commanded",
    "measured_poses": "end-effector poses measured in the next frame, not commands",
}
NOT_STATED = "the data do not state whether actions were commanded or measured"
FORMER_NAMES = {"joint": "joint_commands", "end_effector": "measured_poses"}  # in older configs
# Column names that identify the space of model folders from before it was stored.
FORMER_COLUMNS = {
    "joint_commands": re.compile(r"(left|right)_(joint\d+|gripper)"),
    "measured_poses": re.compile(r"(left|right)_(x|y|z|qw|qx|qy|qz|gripper)"),
}


def current_action_space(word: str) -> str:
    """The current name of an action space; "" (not stated) stays ""."""
    space = FORMER_NAMES.get(word, word)
    if space and space not in ACTION_SPACES:
        raise ValueError(f"action_space is one of {', '.join(ACTION_SPACES)}, got {word!r}")
    return space


def former_action_space(names: Sequence[str]) -> str:
    """The action space of an old model folder, which does not state it, from its columns; "" if unknown."""
    fits = [space for space, column in FORMER_COLUMNS.items() if all(map(column.fullmatch, names))]
    return fits[0] if len(fits) == 1 else ""


def describe_action_space(space: str) -> str:
    """Description for tables and pages: "measured_poses (end-effector poses measured ...)"."""
    return f"{space} ({ACTION_SPACES[space]})" if space else NOT_STATED


def describe_action_spaces(spaces: Iterable[str]) -> str:
    """Descriptions of several robots' spaces, without repeats."""
    return "; ".join(describe_action_space(space) for space in dict.fromkeys(spaces))
