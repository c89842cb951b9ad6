"""The interface of a world, generated or simulated, that environments use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float, UInt8

from worldmodel.environments.initial_states import Start
from worldmodel.environments.spaces import WorldSpec


@dataclass(frozen=True)
class Block:
    """The result of a block of actions, with one entry per parallel environment."""

    frames: UInt8[np.ndarray, "b n H W 3"]  # one after each action
    info: Mapping[str, np.ndarray] = field(default_factory=dict)  # one entry per row


class World(Protocol):
    """Rows of independent episodes."""

    spec: WorldSpec
    num_frames: int  # number of frames in an initial state

    def start(self, seeds: Mapping[int, int], starts: Sequence[Start] | None) -> dict[int, Start]:
        """Begin new episodes in the rows that are keys of `seeds`; returns their initial states."""
        ...

    def step(self, actions: Float[np.ndarray, "b n a"]) -> Block:
        """Run a block of actions in every row."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


@dataclass(frozen=True)
class Verdict:
    """Rewards and successes of a block; one entry per row."""

    rewards: Float[np.ndarray, " b"]
    success: Bool[np.ndarray, " b"]
    info: Mapping[str, np.ndarray] = field(default_factory=dict)


class Judge(Protocol):
    """Computes rewards. The environment ends an episode on success."""

    def __call__(
        self, starts: Sequence[Start], block: Block, actions: Float[np.ndarray, "b n a"]
    ) -> Verdict: ...


def no_judge(starts: Sequence[Start], block: Block, actions: Float[np.ndarray, "b n a"]) -> Verdict:
    """No rewards and no success, for worlds without a task."""
    return Verdict(np.zeros(len(starts)), np.zeros(len(starts), bool))
