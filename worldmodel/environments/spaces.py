"""Observation and action spaces: pictures and last command in, blocks of robot commands out.

    observation   {"image_CAMERA": uint8 [H W 3], "state": float32 [a]}
    action        float32 [block a], the robot's own units, one row per transition

The state is the last command, not a measurement: a world model has no joints to measure.
"""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from jaxtyping import Float, UInt8

from worldmodel.data.normalize import ActionNormalizer
from worldmodel.models.config import InputSpec
from worldmodel.types import FRAMES_PER_LATENT

STATE = "state"
IMAGE_PREFIX = "image_"


@dataclass(frozen=True)
class WorldSpec:
    """The observations and actions of a world, as a policy uses them."""

    camera: str  # name of the one camera
    height: int  # pixels
    width: int  # pixels
    fps: float  # frames, and so actions, per second
    embodiment: str  # whose commands the actions are
    action_names: tuple[str, ...]  # one per column
    action_space: str  # joint_commands, pose_commands, measured_poses, or "" when not stated
    low: Float[np.ndarray, " a"]  # smallest command of the training data, in the robot's units
    high: Float[np.ndarray, " a"]

    @classmethod
    def of(
        cls, contract: InputSpec, normalizer: ActionNormalizer, embodiment: str | None = None
    ) -> "WorldSpec":
        """The spec of a checkpoint; without a name, for its first robot."""
        name = embodiment or normalizer.embodiments[0]
        normalizer.index(name)  # refuses a robot that the checkpoint does not support
        stats = normalizer.stats[name]
        low, high = stats.bounds()
        return cls(
            contract.camera or "camera",
            contract.height,
            contract.width,
            contract.fps,
            name,
            stats.names,
            stats.action_space,
            np.minimum(stats.minimum, low).astype(np.float32),
            np.maximum(stats.maximum, high).astype(np.float32),
        )

    @property
    def image_key(self) -> str:
        """Key of the picture in an observation."""
        return f"{IMAGE_PREFIX}{self.camera}"

    def observation_space(self) -> spaces.Dict:
        """Pictures and the last command of one world."""
        picture = spaces.Box(0, 255, (self.height, self.width, 3), np.uint8)
        state = spaces.Box(-np.inf, np.inf, self.low.shape, np.float32)
        return spaces.Dict({self.image_key: picture, STATE: state})

    def action_space_of(self, block: int = FRAMES_PER_LATENT) -> spaces.Box:
        """`block` commands in a row, within the range of the training data."""
        shape = (block, len(self.low))
        return spaces.Box(np.broadcast_to(self.low, shape), np.broadcast_to(self.high, shape), shape)

    def observation(
        self, pictures: UInt8[np.ndarray, "b H W 3"], states: Float[np.ndarray, "b a"]
    ) -> dict[str, np.ndarray]:
        """A batch of observations; the arrays are copies."""
        return {self.image_key: pictures.copy(), STATE: states.astype(np.float32)}
