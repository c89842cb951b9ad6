"""Converts held keys to robot commands, a block at a time.

Hands move in the directions of the picture: right, up and height, converted to the world by the camera.
Robots without named hand poses are driven by sliders, one per action dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from worldmodel.environments.spaces import WorldSpec
from worldmodel.types import CameraMatrices

HAND_SPEED = 0.30  # m/s at full deflection
GRIP_SPEED = 2.0  # openings per second
SLIDER_SPEED = 0.7  # speed of following a slider, in ranges per second
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Inputs:
    """The inputs held by the visitor."""

    hands: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # side -> right, up, height, opening; -1..1
    sliders: Mapping[int, float] = field(default_factory=dict)  # column -> target value, robot units
    hold: Sequence[str] = ()  # concepts of `arm_concepts` that are held constant

    @property
    def is_idle(self) -> bool:
        """Whether no input is held."""
        return not self.sliders and not any(any(values) for values in self.hands.values())


class Teleop:
    """Keeps the robot's last command and updates it."""

    def __init__(self, spec: WorldSpec, camera: CameraMatrices | None = None) -> None:
        self.spec = spec
        self.right, self.up = _picture_axes(camera)
        self.columns = {
            side: [spec.action_names.index(f"{side}_{part}") for part in (*AXES, "gripper")]
            for side in ("left", "right")
            if all(f"{side}_{part}" in spec.action_names for part in (*AXES, "gripper"))
        }
        self.command = (spec.low + spec.high).astype(np.float64) / 2

    @property
    def sides(self) -> tuple[str, ...]:
        """Arms that keys can move; none: sliders only."""
        return tuple(self.columns)

    def block(self, inputs: Inputs, count: int) -> Float[np.ndarray, "n a"]:
        """The next commands."""
        return np.stack([self._next(inputs) for _ in range(count)])

    def _next(self, inputs: Inputs) -> Float[np.ndarray, " a"]:
        seconds = 1 / self.spec.fps
        command = self.command.copy()
        for column, value in inputs.sliders.items():
            reach = SLIDER_SPEED * (self.spec.high[column] - self.spec.low[column]) * seconds
            command[column] += np.clip(value - command[column], -reach, reach)
        for side, values in inputs.hands.items():
            if side in self.columns:
                right, up, height, opening = np.clip(values, -1, 1)
                *place, grip = self.columns[side]
                step = right * self.right + up * self.up + height * np.array([0.0, 0.0, 1.0])
                command[place] += HAND_SPEED * seconds * step
                command[grip] += GRIP_SPEED * seconds * opening
        # A start outside the range of the training data is kept, but cannot move further out.
        low, high = np.minimum(self.spec.low, self.command), np.maximum(self.spec.high, self.command)
        self.command = np.clip(command, low, high)
        return self.command.copy()


def _picture_axes(camera: CameraMatrices | None) -> tuple[np.ndarray, np.ndarray]:
    """Horizontal directions of the world that correspond to right and up in the picture."""
    if camera is None:
        return np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    rotation = np.asarray(camera.extrinsics, np.float64).reshape(-1, 3, 4)[0, :, :3]
    right, up = rotation[0] * [1, 1, 0], -rotation[1] * [1, 1, 0]
    return right / np.linalg.norm(right), up / max(float(np.linalg.norm(up)), 1e-9)
