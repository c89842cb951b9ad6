"""One row of a vector environment as a plain gymnasium environment."""

from typing import Any

import gymnasium
import numpy as np

from worldmodel.environments.vector import WorldVectorEnv


class WorldEnv(gymnasium.Env):
    """The only row of `rows`, which must not reset automatically."""

    def __init__(self, rows: WorldVectorEnv) -> None:
        if rows.num_envs != 1 or rows.autoreset:
            raise ValueError(f"expected one row without autoreset, got {rows.num_envs}, {rows.autoreset}")
        self.rows = rows
        self.observation_space, self.action_space = rows.single_observation_space, rows.single_action_space
        self.metadata = {key: rows.metadata[key] for key in ("render_modes", "render_fps")}
        self.render_mode = rows.render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start an episode; options as in the vector environment."""
        super().reset(seed=seed)
        start = int(self.np_random.integers(2**31)) if seed is None else seed
        observation, info = self.rows.reset(seed=start, options=options)
        return first_row(observation), first_row(info)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Run a block of actions."""
        observation, rewards, terminated, truncated, info = self.rows.step(np.asarray(action)[None])
        ended = bool(terminated[0]), bool(truncated[0])
        return first_row(observation), float(rewards[0]), *ended, first_row(info)

    def render(self) -> np.ndarray:
        """The current picture."""
        return self.rows.render()[0].copy()

    def close(self) -> None:
        """Release the world."""
        self.rows.close()


def first_row(values: dict[str, Any]) -> dict[str, Any]:
    """The entries of the first row, without the masks of rows that have an entry."""
    return {key: value[0] for key, value in values.items() if not key.startswith("_")}
