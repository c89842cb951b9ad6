"""Measures how far arms trail their commands, from recordings that hold both.

Command i is given at frame i, and frame i + 1 shows the arm on its way. With frames `step` recorded frames
apart, the lag gives the position of the arm at frame time:

    measured[t] = command[t - 1] + lag * (command[t - 1 - step] - command[t - 1])

0: it has arrived. 1: none of the last commanded motion has been executed. `apply_command_lag` draws hands by
this rule, and `model.actions.pose_maps.command_lag` sets it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from worldmodel.data.action_deltas import FOLLOWS, correlation
from worldmodel.types import Episode

LEAST_ROWS = 16  # with fewer rows the estimate is unreliable
OF_POSITION = re.compile(r"(?:.*[_.])?(x|y|z)")
OF_GRIPPER = re.compile(r".*(gripper|hand|finger|suction).*")
WHOLE_TURN = 5.8  # radians: a larger step is a wrapped angle

Numbers = Float[np.ndarray, "_ _"]


@dataclass(frozen=True)
class CommandLag:
    """A lag, and how much of the tracking error it explains. Distances are in the units of the columns."""

    share: float  # fraction of the last commanded motion not yet executed at frame time
    distance: float  # root mean square difference of measured and commanded values
    remaining: float  # the same after correcting for the lag
    columns: tuple[str, ...]
    num_rows: int

    @property
    def is_explained(self) -> bool:
        """Whether the lag explains most of the difference; otherwise it has other causes."""
        return 0 <= self.share <= 1 and self.remaining < self.distance / 2


def measure_lag(
    parts: Sequence[tuple[Numbers, Numbers]], names: Sequence[str], step: int
) -> CommandLag | None:
    """The least-squares lag; None if nothing moves or there are too few rows.

    Args:
        parts: commands [t-1 a] and measured values [t a] of some episodes, the same columns.
        names: of the columns.
        step: recorded frames between two frames of a clip.

    Examples:
        >>> import numpy as np
        >>> from robotwin_adapters.tools.command_lag import measure_lag
        >>> commands = np.linspace(0, 1, 40)[:, None] ** 2
        >>> measured = np.concatenate([commands[:1], commands])
        >>> measured[2:] -= 0.3 * np.diff(commands, axis=0)  # 0.3 of the last motion is missing
        >>> round(measure_lag([(commands, measured)], ["x"], step=1).share, 3)
        0.3
    """
    rows = [
        (commands[step:] - measured[1 + step :], commands[step:] - commands[:-step])
        for commands, measured in parts
        if len(commands) > step
    ]
    if sum(len(missing) for missing, _ in rows) < LEAST_ROWS:
        return None
    missing, moved = (np.concatenate(arrays).astype(np.float64) for arrays in zip(*rows, strict=True))
    if not (moved**2).sum() > 0:
        return None
    share = float((missing * moved).sum() / (moved**2).sum())
    remaining = missing - share * moved
    return CommandLag(share, _size(missing), _size(remaining), tuple(names), len(missing))


def commanded_and_measured(
    episodes: Sequence[Episode],
) -> tuple[list[tuple[Numbers, Numbers]], tuple[str, ...]]:
    """Commands and measured states in the same columns, matched by name or position, and the column names.

    Only absolute columns whose state follows the command are kept: positions if the names identify them, else
    all but grippers. The result is empty for actions that equal the next state, because these are measured
    values.
    """
    first = episodes[0]
    pairs = [pair for pair in map(_shared_columns, episodes) if pair is not None]
    if len(pairs) < len(episodes) or len({names for *_, names in pairs}) != 1:
        return [], ()
    names = pairs[0][2]
    commands, states = np.concatenate([c for c, *_ in pairs]), np.concatenate([s[1:] for _, s, _ in pairs])
    if np.array_equal(commands, states):
        return [], ()
    steps = np.abs(np.diff(states, axis=0)).max(axis=0, initial=0)
    with np.errstate(invalid="ignore"):
        follows = correlation(commands, states) > FOLLOWS
    changes = set(first.delta_actions or ())
    kept = [
        column
        for column, name in enumerate(names)
        if follows[column]
        and steps[column] < WHOLE_TURN
        and name not in changes
        and not OF_GRIPPER.fullmatch(name.lower())
    ]
    kept = [column for column in kept if OF_POSITION.fullmatch(names[column].lower())] or kept
    chosen = tuple(names[column] for column in kept)
    return [(c[:, kept], s[:, kept]) for c, s, _ in pairs] if kept else [], chosen


def _shared_columns(episode: Episode) -> tuple[Numbers, Numbers, tuple[str, ...]] | None:
    states, names = episode.robot_states, episode.action_names
    if states is None or episode.action_space == "measured_poses":
        return None
    shared = tuple(name for name in names if name in episode.state_names)
    if shared:
        places = [episode.state_names.index(name) for name in shared]
        return episode.robot_actions[:, [names.index(name) for name in shared]], states[:, places], shared
    return (episode.robot_actions, states, names) if states.shape[1] == len(names) else None


def _size(distances: Numbers) -> float:
    return float(np.sqrt((distances**2).mean()))
