"""A backend for RLinf's world-model environment, which owns episodes and rewards and asks for frames.

RLinf calls `open_session`, `generate`, `close_session`, `offload` and `onload`, and reads `chunk`,
`condition_frame_length` and `image_size`. Pictures go in and out in [-1, 1], and actions in the robot's own
units. A session is one trajectory, computed by itself, so that its pixels do not depend on the others.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import Session
from worldmodel.types import FRAMES_PER_LATENT, CameraMatrices


class SessionBackend:
    """World-model sessions by the number of their environment.

    Examples:
        >>> import torch
        >>> from worldmodel import WorldModel
        >>> from examples.session_backend import SessionBackend
        >>> backend = SessionBackend(WorldModel.from_pretrained("desk"))
        >>> first, no_actions = [[torch.zeros(3, 1, 64, 64)]], torch.zeros(1, 1, 16)
        >>> backend.open_session([0], first, no_actions, task_ids=["a"], seeds=[7])
        >>> backend.generate([0], torch.zeros(1, backend.chunk, 16)).shape
        torch.Size([1, 3, 4, 64, 64])
    """

    def __init__(
        self,
        model: WorldModel,
        embodiment: str | None = None,
        *,
        camera: CameraMatrices | None = None,
        chunk: int = FRAMES_PER_LATENT,
        num_inference_steps: int = 0,
    ) -> None:
        """`chunk` is how many actions a call has, a multiple of 4; `camera` is for models with pose maps."""
        if chunk < 1 or chunk % FRAMES_PER_LATENT:
            raise ValueError(f"chunk: expected a multiple of {FRAMES_PER_LATENT}, got {chunk}")
        self.model, self.camera, self.chunk = model, camera, chunk
        self.embodiment = embodiment or model.normalizer.embodiments[0]
        self.condition_frame_length = model.config.num_given
        self.image_size = (model.contract.height, model.contract.width)
        self.num_inference_steps = num_inference_steps
        self.pipeline = RolloutPipeline(model)
        self._home = model.device
        self._sessions: dict[int, Session] = {}

    def open_session(
        self,
        env_ids: Sequence[int],
        init_frames: Sequence[Sequence[Float[Tensor, "3 1 H W"]]],
        init_actions: Float[Tensor, "b t a"],
        task_ids: Sequence[Any],
        seeds: Sequence[int],
    ) -> None:
        """Begin a trajectory in each environment, from its frames and the actions that led to them."""
        for number, frames, actions, _, seed in zip(
            env_ids, init_frames, init_actions, task_ids, seeds, strict=True
        ):
            if len(frames) != self.condition_frame_length:
                raise ValueError(
                    f"init_frames: expected {self.condition_frame_length} an environment, got {len(frames)}"
                )
            video = (torch.cat(list(frames), 1).transpose(0, 1).float() + 1) / 2
            past = actions[1:]  # the action of the first frame led there from a frame that nobody gave
            self._sessions[int(number)] = self.pipeline.open(
                video[None].clamp(0, 1),
                past[None] if len(past) else None,
                embodiment=self.embodiment,
                num_inference_steps=self.num_inference_steps,
                generator=[torch.Generator().manual_seed(int(seed))],
                camera=self.camera,
            )

    def generate(self, env_ids: Sequence[int], actions: Float[Tensor, "b n a"]) -> Float[Tensor, "b 3 n H W"]:
        """The frames after the actions of each environment, in [-1, 1]."""
        if len(env_ids) != len(actions):
            raise ValueError(f"expected actions of {len(env_ids)} sessions, got {len(actions)}")
        rows = [self._advance(int(number), row) for number, row in zip(env_ids, actions, strict=True)]
        return torch.stack(rows).transpose(1, 2) * 2 - 1

    def close_session(self, env_ids: Sequence[int]) -> None:
        """End trajectories; environments without one are passed over."""
        for number in env_ids:
            self._sessions.pop(int(number), None)

    def offload(self) -> None:
        """Move the weights to main memory, for a trainer that needs the accelerator."""
        self.model.to("cpu")

    def onload(self) -> None:
        """Move them back."""
        self.model.to(self._home)

    def _advance(self, number: int, actions: Float[Tensor, "n a"]) -> Float[Tensor, "n 3 H W"]:
        if number not in self._sessions:
            raise ValueError(f"no session {number}; open are {sorted(self._sessions)}")
        if len(actions) % FRAMES_PER_LATENT:
            raise ValueError(f"expected blocks of {FRAMES_PER_LATENT} actions, got {len(actions)}")
        session = self._sessions[number]
        return torch.cat([session.step(block[None])[0] for block in actions.split(FRAMES_PER_LATENT)])
