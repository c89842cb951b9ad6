"""Kinds of robot actions: joints or poses, commanded or measured."""

from collections.abc import Iterable

ACTION_SPACES = {
    "joint_commands": "joint targets that were commanded",
    "pose_commands": "end-effector poses that were commanded",
    "measured_poses": "end-effector poses measured in the next frame, not commands",
}
NOT_STATED = "the data do not state whether actions were commanded or measured"


def check_action_space(space: str) -> str:
    """The space itself if it is one of ACTION_SPACES, or empty: not stated."""
    if space and space not in ACTION_SPACES:
        raise ValueError(f"action_space is one of {', '.join(ACTION_SPACES)}, got {space!r}")
    return space


def describe_action_space(space: str) -> str:
    """Description for tables and pages: "measured_poses (end-effector poses measured ...)"."""
    return f"{space} ({ACTION_SPACES[space]})" if space else NOT_STATED


def describe_action_spaces(spaces: Iterable[str]) -> str:
    """Descriptions of several robots' spaces, without repeats."""
    return "; ".join(describe_action_space(space) for space in dict.fromkeys(spaces))
