"""Interventions as edits of commands: do(left arm holds), do(right gripper open).

    actions = edit_actions(actions, names, {"left_arm": HOLD, "right_gripper": OPEN})

An edit is independent of the model: it works for rollouts, sessions, `play` and the simulator.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from torch import Tensor

HOLD = "hold"  # repeat the previous command
OPEN, CLOSED = 1.0, 0.0  # commands of a gripper, in the robot's own units
SIDES = ("left", "right")

Actions = TypeVar("Actions", np.ndarray, Tensor)


def arm_concepts(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Concepts -> their action dimensions: left_arm, left_gripper, right_arm, right_gripper.

    Empty for robots whose actions are not named left_... and right_... .
    """
    found: dict[str, tuple[int, ...]] = {}
    for side in SIDES:
        own = [index for index, name in enumerate(names) if name.startswith(side)]
        grippers = tuple(index for index in own if "gripper" in names[index])
        arm = tuple(index for index in own if index not in grippers)
        found |= {f"{side}_arm": arm, f"{side}_gripper": grippers}
    return {concept: columns for concept, columns in found.items() if columns}


def edit_actions(
    actions: Actions, names: Sequence[str], do: Mapping[str, str | float], *, before: Actions | None = None
) -> Actions:
    """The actions [... n a] under do; concepts that are not named stay unchanged.

    Args:
        actions: in the robot's own units, or normalized if nothing is set to a number.
        names: one per action dimension.
        do: concept of `arm_concepts` -> "hold" or the number that is commanded instead.
        before: the previous command [... a], which a held concept repeats; None: the first one of `actions`.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.evaluation.action_edits import HOLD, edit_actions
        >>> names = ("left_x", "left_gripper", "right_x", "right_gripper")
        >>> actions = np.array([[1.0, 0.5, 3.0, 0.5], [2.0, 0.4, 4.0, 0.4]])
        >>> edit_actions(actions, names, {"left_arm": HOLD, "right_gripper": 1.0}).tolist()
        [[1.0, 0.5, 3.0, 1.0], [1.0, 0.4, 4.0, 1.0]]
    """
    known = arm_concepts(names)
    if unknown := sorted(set(do) - set(known)):
        raise ValueError(
            f"no concept {', '.join(unknown)} in these actions; expected {', '.join(known) or 'none at all'}"
        )
    edited = actions.clone() if isinstance(actions, Tensor) else actions.copy()
    held = actions[..., :1, :] if before is None else before[..., None, :]
    for concept, value in do.items():
        columns = list(known[concept])
        if isinstance(value, str) and value != HOLD:
            raise ValueError(f"{concept}: expected a number or {HOLD!r}, got {value!r}")
        edited[..., columns] = held[..., columns] if isinstance(value, str) else value
    return edited
