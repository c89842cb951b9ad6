"""Sessions as RLinf's world-model backends have them: the trainer's environment owns episodes and rewards.

`open_session`, `generate`, `close_session`, `offload` and `onload` carry RLinf's names. A session is one
trajectory, computed by itself, so that its pixels do not depend on which others generate with it.
"""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.environments.starts import camera_argument
from worldmodel.models.world_model.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import Session
from worldmodel.types import CameraMatrices


class SessionBackend:
    """World-model sessions by number."""

    def __init__(self, model: WorldModel, *, num_inference_steps: int = 1) -> None:
        self.model, self.num_inference_steps = model, num_inference_steps
        self.pipeline = RolloutPipeline(model)
        self._home = model.text.device
        self._numbers = itertools.count()
        self._sessions: dict[int, Session] = {}

    def open_session(
        self,
        frames: UInt8[Tensor, "t 3 H W"] | Float[Tensor, "t 3 H W"],
        *,
        embodiment: str,
        past_actions: Float[Tensor, "m a"] | None = None,
        camera: CameraMatrices | None = None,
        seed: int = 0,
    ) -> int:
        """Hand over the condition window once; the number of the new session."""
        number = next(self._numbers)
        self._sessions[number] = self.pipeline.open(
            frames[None],
            None if past_actions is None else past_actions[None],
            embodiment=embodiment,
            num_inference_steps=self.num_inference_steps,
            generator=[torch.Generator().manual_seed(seed)],
            **camera_argument(self.model, [camera]),
        )
        return number

    def generate(
        self, sessions: Sequence[int], actions: Float[Tensor, "b n a"]
    ) -> Float[Tensor, "b n 3 H W"]:
        """Frames of each session after its row of actions, in [0, 1]."""
        if len(sessions) != len(actions):
            raise ValueError(f"expected actions of {len(sessions)} sessions, got {len(actions)}")
        rows = [self._find(number).step(row[None]) for number, row in zip(sessions, actions, strict=True)]
        return torch.cat(rows)

    def close_session(self, number: int) -> None:
        """Forget a session."""
        self._find(number)
        del self._sessions[number]

    def offload(self) -> None:
        """Move the weights to main memory, for a trainer that needs the accelerator."""
        self.model.to("cpu")

    def onload(self) -> None:
        """Move them back."""
        self.model.to(self._home)

    def _find(self, number: int) -> Session:
        if number not in self._sessions:
            raise ValueError(f"no session {number}; open are {sorted(self._sessions)}")
        return self._sessions[number]
