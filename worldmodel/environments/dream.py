"""A world model as an environment: the picture after each command is generated, not simulated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.device import AnyDevice, find_device
from worldmodel.environments.initial_states import DatasetStarts, Start, StartSource, open_session
from worldmodel.environments.single import WorldEnv
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.success_detector import PlacementJudge
from worldmodel.environments.tabletop import TASK, TabletopScenes
from worldmodel.environments.uncertainty import UncertaintyMeter
from worldmodel.environments.vector import WorldVectorEnv
from worldmodel.environments.world import Block, Judge
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import Session
from worldmodel.types import FRAMES_PER_LATENT, EpisodeSource, to_uint8


@dataclass
class _Group:
    """Rows that started together and share a session; `rows[i]` is -1 if sample i is no longer used."""

    session: Session
    rows: list[int]
    pending: Float[Tensor, "b m a"] = field(default_factory=lambda: torch.zeros(0, 0, 0))  # m < 4

    def step(self, actions: Float[Tensor, "b n a"]) -> Float[Tensor, "b n 3 H W"]:
        """Frames after each action; for an incomplete latent frame the missing actions repeat the last one.

        This preview starts from the same noise, so that complete blocks do not depend on how their actions
        arrived.
        """
        before = self.pending.shape[1]
        known = torch.cat([self.pending, actions], 1) if before else actions
        whole = known.shape[1] - known.shape[1] % FRAMES_PER_LATENT
        made = [self.session.step(known[:, :whole])] if whole else []
        self.pending = known[:, whole:]
        if rest := self.pending.shape[1]:
            held = self.pending[:, -1:].expand(-1, FRAMES_PER_LATENT - rest, -1)
            made += [self.session.fork().step(torch.cat([self.pending, held], 1))[:, :rest]]
        return torch.cat(made, 1)[:, before:]


class DreamWorld:
    """Rows of streaming sessions. Rows that start together are computed together."""

    def __init__(
        self,
        model: WorldModel,
        starts: StartSource | None,
        spec: WorldSpec,
        *,
        num_inference_steps: int = 0,
        distrust: UncertaintyMeter | None = None,
    ) -> None:
        self.model, self.starts, self.spec = model, starts, spec
        self.num_inference_steps, self.distrust = num_inference_steps, distrust
        self.num_frames = model.config.num_given
        self.pipeline = RolloutPipeline(model)
        self.groups: list[_Group] = []

    def start(self, seeds: Mapping[int, int], starts: Sequence[Start] | None) -> dict[int, Start]:
        if starts is None:
            if self.starts is None:
                raise ValueError(
                    "nothing to start from: name a dataset, or give reset options frames, episode or starts"
                )
            starts = [self.starts(seed) for seed in seeds.values()]
        self._forget(seeds)
        session = open_session(self.pipeline, starts, list(seeds.values()), self.num_inference_steps)
        self.groups.append(_Group(session, list(seeds)))
        return dict(zip(seeds, starts, strict=True))

    def step(self, actions: Float[np.ndarray, "b n a"]) -> Block:
        shape = (*actions.shape[:2], self.spec.height, self.spec.width, 3)
        frames = np.empty(shape, np.uint8)
        info = {name: np.zeros(len(actions)) for name in UncertaintyMeter.NAMES} if self.distrust else {}
        for group in self.groups:
            # Unused samples continue with some row's actions: the batch size of a session is fixed.
            taken = torch.from_numpy(actions[[max(row, 0) for row in group.rows]])
            probe = group.session.fork() if self.distrust else None
            made = group.step(taken)
            live = [(sample, row) for sample, row in enumerate(group.rows) if row >= 0]
            pictures = to_uint8(made).permute(0, 1, 3, 4, 2).numpy()
            for sample, row in live:
                frames[row] = pictures[sample]
            if self.distrust and probe is not None:
                signals = self.distrust(probe, taken, made)
                for name, values in signals.items():
                    for sample, row in live:
                        info[name][row] = values[sample]
        return Block(frames, info)

    def close(self) -> None:
        self.groups.clear()

    def _forget(self, rows: Mapping[int, int]) -> None:
        for group in self.groups:
            group.rows = [-1 if row in rows else row for row in group.rows]
        self.groups = [group for group in self.groups if max(group.rows) >= 0]


class WorldModelVectorEnv(WorldVectorEnv):
    """A batch of environments that a world model generates.

    Examples:
        >>> from worldmodel.environments import WorldModelVectorEnv
        >>> env = WorldModelVectorEnv("desk", 2)  # the shipped model, on scenes of the embedded simulator
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> observation["image_desk_camera"].shape, info["frames"].shape
        ((2, 64, 64, 3), (2, 4, 64, 64, 3))
    """

    def __init__(
        self,
        model: WorldModel | str = "desk",
        num_envs: int = 1,
        *,
        dataset: EpisodeSource | str | None = None,
        embodiment: str | None = None,
        task: str = TASK,
        judge: Judge | None = None,
        num_inference_steps: int = 0,
        distrust: bool = False,
        max_episode_steps: int = 24,
        action_block: int = FRAMES_PER_LATENT,
        autoreset: bool = True,
        timings: bool = False,
        device: AnyDevice | None = None,
    ) -> None:
        """Load the model; the first reset opens the sessions.

        Args:
            model: a world model, or its folder, hub id or shipped name.
            num_envs: rows.
            dataset: source of first frames; none: seeded scenes of the embedded simulator.
            embodiment: one of the model's robots; none: its first.
            task: of the simulated scenes; a dataset has its own.
            judge: computes rewards; none: the success detector of the a2b tasks if the start has camera
                matrices and object positions, else no reward.
            num_inference_steps: sampling steps per latent frame; 0: the number recommended for the model.
            distrust: add uncertainty signals to `info`, for about twice the time.
            max_episode_steps: blocks after which an episode is truncated.
            action_block: actions in one step; blocks of 4 are the most efficient.
            autoreset: start a new episode in the step in which one ends.
            timings: add `seconds` per row to `info`, which then differs from run to run.
            device: auto, cpu, cuda or mps; none: where a model is that was passed, auto for one by name.
        """
        if isinstance(model, str):
            model = WorldModel.from_pretrained(model, device=device or "auto")
        loaded = model if device is None else model.to(find_device(device))
        spec = WorldSpec.of(loaded.contract, loaded.normalizer, embodiment)
        world = DreamWorld(
            loaded,
            _start_source(loaded, spec, dataset, task),
            spec,
            num_inference_steps=num_inference_steps,
            distrust=UncertaintyMeter(loaded) if distrust else None,
        )
        super().__init__(
            world,
            loaded.contract,
            num_envs,
            judge=judge or PlacementJudge.shipped(spec),
            max_episode_steps=max_episode_steps,
            action_block=action_block,
            autoreset=autoreset,
            timings=timings,
        )


class WorldModelEnv(WorldEnv):
    """A single environment; the same arguments as the vector environment."""

    def __init__(
        self, model: WorldModel | str = "desk", *, render_mode: str = "rgb_array", **settings: Any
    ) -> None:
        super().__init__(WorldModelVectorEnv(model, 1, autoreset=False, **settings))


def _start_source(
    model: WorldModel, spec: WorldSpec, dataset: EpisodeSource | str | None, task: str
) -> StartSource:
    num_frames = model.config.num_given
    if dataset is None:
        return TabletopScenes(spec, task, num_frames)
    if isinstance(dataset, str):
        from robotwin_adapters.open_dataset import open_as_trained

        dataset = open_as_trained(dataset, model.normalizer, model.trained_on)
    return DatasetStarts(dataset, model.contract, spec, num_frames)
