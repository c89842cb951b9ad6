"""Many episodes of one world with gymnasium's vector interface; one step is a block of actions.

An episode that ends is restarted within the same step (`AutoresetMode.SAME_STEP`): the observation is the
first one of the next episode, and the last one of the old episode is in `info["final_obs"]`.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float

from worldmodel.environments.initial_states import Start, given_starts, seeds_of
from worldmodel.environments.world import Block, Judge, World, no_judge
from worldmodel.models.config import InputSpec
from worldmodel.types import FRAMES_PER_LATENT

NEXT_SEED = 1_000_003  # difference between the seeds of successive episodes in a row


class WorldVectorEnv(VectorEnv):
    """Rows of a world with their episodes and rewards; the world computes the steps."""

    def __init__(
        self,
        world: World,
        contract: InputSpec,
        num_envs: int,
        *,
        judge: Judge | None = None,
        max_episode_steps: int = 24,
        action_block: int = FRAMES_PER_LATENT,
        autoreset: bool = True,
        timings: bool = False,
    ) -> None:
        if num_envs < 1 or max_episode_steps < 1 or action_block < 1:
            raise ValueError(
                "num_envs, max_episode_steps and action_block are 1 or more, got "
                f"{num_envs}, {max_episode_steps} and {action_block}"
            )
        self.world, self.contract, self.judge = world, contract, judge or no_judge
        self.num_envs, self.max_episode_steps, self.action_block = num_envs, max_episode_steps, action_block
        self.autoreset, self.timings, self.render_mode = autoreset, timings, "rgb_array"
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": world.spec.fps,
            "autoreset_mode": AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED,
        }
        self.single_observation_space = world.spec.observation_space()
        self.single_action_space = world.spec.action_space_of(action_block)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rng = np.random.default_rng()
        self._seeds = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._starts: list[Start] = []
        self._pictures = np.zeros((num_envs, contract.height, contract.width, 3), np.uint8)
        self._states = np.zeros((num_envs, len(world.spec.low)), np.float64)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start episodes in all rows, or in those of options["reset_mask"].

        The options `starts`, `episode` with `frame`, or `frames` with `state` set the initial states; without
        them the world draws them from the seed.
        """
        options = options or {}
        mask = np.asarray(options.get("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ValueError(f"options['reset_mask']: expected {self.num_envs} booleans, one of them true")
        if isinstance(seed, int | np.integer):
            self._rng = np.random.default_rng(int(seed))
        rows = np.flatnonzero(mask)
        seeds = np.array(seeds_of(seed, self.num_envs, self._rng))
        self._begin(rows, seeds[rows], options)
        return self._observation(), self._start_info()

    def step(
        self, actions: Float[np.ndarray, "b n a"]
    ) -> tuple[
        dict[str, np.ndarray],
        Float[np.ndarray, " b"],
        Bool[np.ndarray, " b"],
        Bool[np.ndarray, " b"],
        dict[str, Any],
    ]:
        """Run one block of actions in every row."""
        if not self._starts:
            raise ValueError("call reset() before the first step()")
        began = time.perf_counter()
        actions = np.asarray(actions, np.float64)
        expected = (self.num_envs, self.action_block, len(self.world.spec.low))
        if actions.shape != expected:
            raise ValueError(f"expected actions {list(expected)}, got {list(actions.shape)}")
        block = self.world.step(actions)
        verdict = self.judge(self._starts, block, actions)
        self._pictures, self._states = block.frames[:, -1].copy(), actions[:, -1].copy()
        self._steps += 1
        terminated = np.asarray(verdict.success, bool)
        truncated = ~terminated & (self._steps >= self.max_episode_steps)
        info = {"frames": block.frames, "is_success": terminated, **block.info, **verdict.info}
        if self.timings:
            info["seconds"] = np.full(self.num_envs, (time.perf_counter() - began) / self.num_envs)
        info |= {f"_{name}": np.ones(self.num_envs, bool) for name in tuple(info)}
        if self.autoreset and (terminated | truncated).any():
            info |= self._restart(terminated | truncated, block, info)
        return self._observation(), np.asarray(verdict.rewards, np.float64), terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...]:
        """The current picture of every row."""
        return tuple(self._pictures)

    def close_extras(self, **_: Any) -> None:
        """Called by `close`."""
        self.world.close()

    def _restart(self, done: np.ndarray, block: Block, info: dict[str, Any]) -> dict[str, Any]:
        last = self._observation()
        rows = np.flatnonzero(done)
        self._begin(rows, self._seeds[rows] + NEXT_SEED, {})
        final = np.full(self.num_envs, None, object)
        for row in rows:
            final[row] = {key: values[row] for key, values in last.items()}
        outcome = {"is_success": info["is_success"] & done, "_is_success": done}
        return {"final_obs": final, "_final_obs": done, "final_info": outcome, "_final_info": done}

    def _begin(self, rows: np.ndarray, seeds: np.ndarray, options: dict[str, Any]) -> None:
        given = given_starts(options, len(rows), self.contract, self.world.spec, self.world.num_frames)
        begun = self.world.start({int(row): int(seed) for row, seed in zip(rows, seeds, strict=True)}, given)
        if not self._starts:
            self._starts = [begun.get(row, begun[int(rows[0])]) for row in range(self.num_envs)]
        for row, start in begun.items():
            self._starts[row] = start
            self._pictures[row], self._states[row] = start.frames[-1], start.state
        self._seeds[rows], self._steps[rows] = seeds, 0

    def _observation(self) -> dict[str, np.ndarray]:
        return self.world.spec.observation(self._pictures, self._states)

    def _start_info(self) -> dict[str, Any]:
        every = np.ones(self.num_envs, bool)
        tasks = np.array([start.task for start in self._starts], object)
        return {"task": tasks, "_task": every, "seed": self._seeds.copy(), "_seed": every}
