"""Detects which action dimensions are deltas (or velocities), which decides how they are merged.

Over several recorded frames deltas are summed; of absolute values the last one is used. In this order:

1. the mapping, or the metadata of the files;
2. names: dx, delta_yaw, rel_pos, joint_0_vel;
3. the state, if it has the same dimensions: an action that follows it is absolute, one that follows its
   change is a delta;
4. an action that jumps around zero from row to row is a delta: a robot's position cannot jump.
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

ALL, NONE = "all", "none"  # values in a mapping
EXAMINED_EPISODES = 4  # evenly spaced episodes of a dataset
CHANGE_NAME = re.compile(
    r"(?:.*[_.])?(?:d|delta|rel|relative|diff)[_.]?(?:x|y|z|r[xyz]|roll|pitch|yaw|theta|pos\w*|rot\w*|ee\w*|joint\w*)"
    r"(?:[_.].*)?|(?:.*[_.])?(?:delta|vel|velocity)s?(?:[_.].*)?"
)
FOLLOWS = 0.7  # correlation
ROUGH = 0.4  # mean step between rows, in standard deviations: recorded poses have 0.01 to 0.2, deltas 0.8
CENTERED = 0.5  # median, in standard deviations

Numbers = Float[np.ndarray, "_ _"]


def find_deltas(
    names: Sequence[str], parts: Sequence[tuple[Numbers, Numbers | None]]
) -> tuple[tuple[str, ...], str]:
    """The delta dimensions, and how they were detected.

    Args:
        names: of the action dimensions.
        parts: robot actions [t-1 a] and states [t s] of some episodes.
    """
    named = tuple(name for name in names if CHANGE_NAME.fullmatch(name.lower()))
    if named:
        return named, "by their names"
    if all(states is not None and states.shape[1] == len(names) for _, states in parts):
        found = _against_states(parts)
        if found is not None:
            reason = "they follow the change of the state" if found.any() else "they follow the state"
            return _chosen(names, found), reason
    found = _is_jumping(np.concatenate([actions for actions, _ in parts]))
    return _chosen(names, found), "they jump around zero" if found.any() else "they run smoothly"


def describe_deltas(deltas: tuple[str, ...] | None, names: Sequence[str]) -> str:
    """One line for tables and notes."""
    if deltas is None:
        return "not known whether absolute or changes; taken as absolute"
    if not deltas:
        return "absolute"
    if len(deltas) == len(names):
        return "changes (deltas or velocities)"
    rest = [name for name in names if name not in deltas]
    return f"changes (deltas or velocities) in {', '.join(deltas)}; absolute in {', '.join(rest)}"


def _chosen(names: Sequence[str], mask: np.ndarray) -> tuple[str, ...]:
    return tuple(name for name, is_change in zip(names, mask, strict=True) if is_change)


def _against_states(parts: Sequence[tuple[Numbers, Numbers | None]]) -> np.ndarray | None:
    """Per dimension, whether the action follows the state's change; None if most follow neither."""
    actions = np.concatenate([part for part, _ in parts])
    states = np.concatenate([part[1:] for _, part in parts if part is not None])
    changes = np.concatenate([np.diff(part, axis=0) for _, part in parts if part is not None])
    absolute, change = correlation(actions, states), correlation(actions, changes)
    moving = ~(np.isnan(absolute) | np.isnan(change))
    is_absolute = moving & (absolute > FOLLOWS)
    is_change = moving & ~is_absolute & (change > FOLLOWS)
    if not moving.any() or (is_absolute | is_change).sum() < moving.sum() / 2:
        return None
    return is_change


def correlation(one: Numbers, other: Numbers) -> np.ndarray:
    """Correlation of corresponding columns; NaN where one is constant."""
    one, other = one - one.mean(0), other - other.mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (one * other).sum(0) / np.sqrt((one**2).sum(0) * (other**2).sum(0))


def _is_jumping(actions: Numbers) -> np.ndarray:
    spread = actions.std(0)
    if len(actions) < 2:
        return np.zeros(actions.shape[1], bool)
    moving = spread > 1e-6 * (1 + np.abs(actions).max(0))
    scale = np.where(moving, spread, 1)
    rough = np.abs(np.diff(actions, axis=0)).mean(0) / scale > ROUGH
    centered = np.abs(np.median(actions, axis=0)) / scale < CENTERED
    return moving & rough & centered
