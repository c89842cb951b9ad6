"""Angles that jump by a full turn: each is cut where the robot never is, so that it runs through.

The cut is the middle of the widest gap between recorded values, the same in all episodes. A joint that goes
all around has no gap and stays as it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

TURNS = (2 * np.pi, 360.0)  # radians, degrees
NEAR = 0.08  # of a turn: a jump this near to a whole one is a wrapped angle
SMOOTH = 0.25  # of a turn: the largest step that is left once the cut is moved
LEAST_GAP = 0.05  # of a turn

Cuts = Mapping[int, tuple[float, float]]  # column -> lowest value, and a turn


def jumps(values: Float[np.ndarray, "t a"], turn: float) -> Bool[np.ndarray, " a"]:
    """Which columns are wrapped angles: some steps jump by a full turn, and at least as many are small."""
    steps = np.abs(np.diff(values, axis=0))
    found = (np.abs(steps - turn) < NEAR * turn).sum(axis=0)
    return (found > 0) & (2 * found <= (steps > 0).sum(axis=0))


def find_cuts(parts: Sequence[Float[np.ndarray, "t a"]]) -> dict[int, tuple[float, float]]:
    """Where to cut the columns that wrap, from some episodes."""
    cuts: dict[int, tuple[float, float]] = {}
    for turn in TURNS:
        for column in np.flatnonzero(np.any([jumps(part, turn) for part in parts], axis=0)).tolist():
            ring = np.sort(np.concatenate([part[:, column] for part in parts]).astype(np.float64) % turn)
            gaps = np.diff(ring, append=ring[0] + turn)
            widest = int(gaps.argmax())
            low = ring[widest] + gaps[widest] / 2
            low -= turn * np.round((low + turn / 2) / turn)
            moved = [cut_angles(part, {column: (low, turn)})[:, column] for part in parts]
            largest = max(float(np.abs(np.diff(values)).max(initial=0)) for values in moved)
            is_angle = max(np.ptp(part[:, column]) for part in parts) <= turn * (1 + NEAR)
            if is_angle and gaps[widest] > LEAST_GAP * turn and largest < SMOOTH * turn:
                cuts[column] = (float(low), turn)
    return cuts


def cut_angles(values: Float[np.ndarray, "t a"], cuts: Cuts) -> Float[np.ndarray, "t a"]:
    """The same angles, none below its cut or a turn above it."""
    values = values.copy()
    for column, (low, turn) in cuts.items():
        values[:, column] = low + (values[:, column].astype(np.float64) - low) % turn
    return values
