"""Policies that need no training, and a loop that runs any policy in these environments.

A policy has `reset()`, `select_action(observation)` and `predict_action_chunk(observation)`, as in LeRobot.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float, UInt8


class Policy(Protocol):
    """Maps observations to commands."""

    def reset(self) -> None:
        """A new episode begins."""
        ...

    def select_action(self, observation: dict[str, Any]) -> Float[np.ndarray, " a"]:
        """One command."""
        ...

    def predict_action_chunk(self, observation: dict[str, Any]) -> Float[np.ndarray, "n a"]:
        """A block of commands."""
        ...


class RandomPolicy:
    """Draws commands uniformly from the action space."""

    def __init__(self, action_space: spaces.Box, seed: int = 0) -> None:
        self.action_space = action_space
        action_space.seed(seed)

    def reset(self) -> None:
        """Does nothing."""

    def select_action(self, observation: dict[str, Any]) -> Float[np.ndarray, " a"]:
        return self.action_space.sample()[0]

    def predict_action_chunk(self, observation: dict[str, Any]) -> Float[np.ndarray, "n a"]:
        return self.action_space.sample()


class ScriptedPolicy:
    """Plays a list of commands, a block at a time, and then repeats the last one."""

    def __init__(self, commands: Float[np.ndarray, "t a"], block: int = 4) -> None:
        self.commands, self.block, self._next = np.asarray(commands, np.float32), block, 0

    def reset(self) -> None:
        """Start from the beginning."""
        self._next = 0

    def select_action(self, observation: dict[str, Any]) -> Float[np.ndarray, " a"]:
        self._next += 1
        return self.commands[min(self._next, len(self.commands)) - 1]

    def predict_action_chunk(self, observation: dict[str, Any]) -> Float[np.ndarray, "n a"]:
        return np.stack([self.select_action(observation) for _ in range(self.block)])


@dataclass(frozen=True)
class PolicyEpisode:
    """The result of one episode."""

    frames: UInt8[np.ndarray, "t H W 3"]  # after each command
    actions: Float[np.ndarray, "t a"]
    total_reward: float
    is_success: bool
    steps: int  # blocks


def run_policy(env: gymnasium.Env, policy: Policy, *, seed: int | None = None) -> PolicyEpisode:
    """Run one episode of a policy, in the simulator or in a world model."""
    observation, _ = env.reset(seed=seed)
    policy.reset()
    frames, actions, total, is_over = [], [], 0.0, False
    while not is_over:
        action = policy.predict_action_chunk(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        frames.append(info["frames"])
        actions.append(action)
        total, is_over = total + float(reward), terminated or truncated
    return PolicyEpisode(
        np.concatenate(frames), np.concatenate(actions), total, bool(info["is_success"]), len(frames)
    )
