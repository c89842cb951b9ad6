"""LeRobot's EnvHub: a repository on the hub holds a file `env.py` with `make_env`; this is such a file.

Observations have LeRobot's keys (`pixels` by camera, `agent_pos`), and a step takes one action, as its
policies give them. Frames between two latent frames are generated ahead, so single actions cost about four
times as much as blocks.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from worldmodel.environments.dream import WorldModelVectorEnv
from worldmodel.environments.spaces import STATE
from worldmodel.environments.vector import WorldVectorEnv

SUITE = "worldmodel"
ACTIONS_PER_EPISODE = 96


class LerobotVectorEnv(VectorEnv):
    """Rows of a world with LeRobot's observations and single actions."""

    def __init__(self, rows: WorldVectorEnv) -> None:
        if rows.action_block != 1:
            raise ValueError(f"LeRobot steps one action at a time: action_block=1, got {rows.action_block}")
        self.rows, self.num_envs, self.metadata = rows, rows.num_envs, rows.metadata
        self.render_mode = rows.render_mode
        spec = rows.world.spec
        picture = spaces.Box(0, 255, (spec.height, spec.width, 3), np.uint8)
        state = spec.observation_space()[STATE]
        self.single_observation_space = spaces.Dict(
            {"pixels": spaces.Dict({spec.camera: picture}), "agent_pos": state}
        )
        self.single_action_space = spaces.Box(spec.low, spec.high)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start episodes in all rows."""
        observation, info = self.rows.reset(seed=seed, options=options)
        return self._named(observation), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One action in every row."""
        observation, rewards, terminated, truncated, info = self.rows.step(np.asarray(actions)[:, None])
        return self._named(observation), rewards, terminated, truncated, info

    def call(self, name: str, *_: Any) -> tuple[Any, ...]:
        """What LeRobot's evaluation asks of each row: how long an episode is, and what the task is."""
        tasks = [start.task for start in self.rows._starts] or [""] * self.num_envs
        known: dict[str, list[Any]] = {
            "_max_episode_steps": [self.rows.max_episode_steps] * self.num_envs,
            "task": tasks,
            "task_description": [task.replace("_", " ") for task in tasks],
            "render": list(self.rows.render()),
        }
        if name not in known:
            raise AttributeError(f"rows have {', '.join(known)}, not {name!r}")
        return tuple(known[name])

    def render(self) -> tuple[np.ndarray, ...]:
        """The picture of every row."""
        return self.rows.render()

    def close_extras(self, **_: Any) -> None:
        """Called by `close`."""
        self.rows.close()

    def _named(self, observation: dict[str, np.ndarray]) -> dict[str, Any]:
        spec = self.rows.world.spec
        return {"pixels": {spec.camera: observation[spec.image_key]}, "agent_pos": observation[STATE]}


def make_env(
    n_envs: int = 1, use_async_envs: bool = False, checkpoint: str = "desk"
) -> dict[str, dict[int, VectorEnv]]:
    """{suite: {task number: environment}}; rows are computed together, whatever `use_async_envs` says."""
    rows = WorldModelVectorEnv(checkpoint, n_envs, action_block=1, max_episode_steps=ACTIONS_PER_EPISODE)
    return {SUITE: {0: LerobotVectorEnv(rows)}}
