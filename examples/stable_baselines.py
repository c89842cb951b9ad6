"""Our vector environments as stable-baselines3 takes them; needs the extra `rl`."""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from worldmodel.environments.vector import WorldVectorEnv


class StableBaselinesEnv(VecEnv):
    """The rows of a vector environment with autoreset, whose convention is that of stable-baselines3."""

    def __init__(self, rows: WorldVectorEnv) -> None:
        if not rows.autoreset:
            raise ValueError("stable-baselines3 needs an environment with autoreset=True")
        self.rows = rows
        super().__init__(rows.num_envs, rows.single_observation_space, rows.single_action_space)
        self._actions = np.zeros((0,))

    def reset(self) -> dict[str, np.ndarray]:
        seeds = [seed if seed is not None else None for seed in self._seeds]
        observation, _ = self.rows.reset(seed=None if None in seeds else seeds)
        self._reset_seeds()
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, rewards, terminated, truncated, info = self.rows.step(self._actions)
        infos: list[dict[str, Any]] = []
        for row in range(self.num_envs):
            own: dict[str, Any] = {"is_success": bool(info["is_success"][row])}
            if terminated[row] or truncated[row]:
                own["terminal_observation"] = info["final_obs"][row]
                own["TimeLimit.truncated"] = bool(truncated[row])
            infos.append(own)
        return observation, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        self.rows.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.rows, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self.rows, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **settings: Any) -> list[Any]:
        answer = getattr(self.rows, method_name)(*args, **settings)
        return [answer] * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))
