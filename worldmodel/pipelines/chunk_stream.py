"""A stream of frames from a model of whole clips: each step generates a clip and keeps what has actions."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.attention import TextContext
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.action_conditions import ActionConditions
from worldmodel.pipelines.hand_follower import HandFollower
from worldmodel.pipelines.sampling import Generators, continue_clip
from worldmodel.types import Actions, map_tensors, num_video_frames


class ChunkStream:
    """Continues the recent frames by clips; a step costs as much as a clip, however few its actions are."""

    def __init__(
        self,
        model: WorldModel,
        frames: Float[Tensor, "b t 3 H W"],
        past: Actions,
        num_inference_steps: int,
        generator: Generators | None,
        hands: HandFollower | None = None,
    ) -> None:
        self.num_recent = num_video_frames(model.config.history)
        if frames.shape[1] < self.num_recent:
            raise ValueError(
                f"expected the {self.num_recent} frames of the model's history or more, got {frames.shape[1]}"
            )
        self.model, self.generator = model, generator
        self.hands = HandFollower(model, frames, past.extras) if hands is None else hands
        self.recent = frames[:, -self.num_recent :]
        self.past = past[-(self.num_recent - 1) :] if self.num_recent > 1 else Actions()
        self.sigmas = model.sigmas(num_inference_steps)
        self.text: TextContext = model.text_context(with_keys=True)

    def advance(self, actions: Actions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        """The frames that so many actions lead to."""
        size = self.model.contract.num_frames - self.num_recent
        steps = [(start, min(start + size, num_actions)) for start in range(0, num_actions, size)]
        return torch.cat([self._clip(actions[slice(*step)], step[1] - step[0]) for step in steps], 1)

    def copies(self, count: int) -> "ChunkStream":
        """The same stream with every sample so many times."""
        twin = copy.copy(self)
        twin.recent = self.recent.repeat_interleave(count, 0)
        twin.past = map_tensors(self.past, lambda x: x.repeat_interleave(count, 0))
        twin.hands = self.hands.copies(count)
        return twin

    def _clip(self, actions: Actions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        known = self.past.concat(actions) if self.num_recent > 1 else actions
        conditions = ActionConditions(self.model, known, self.num_recent + num_actions)
        embedding = conditions.embed(self.num_recent, self.recent)
        made = continue_clip(self.model, self.recent, embedding, self.text, self.sigmas, self.generator)
        composed = self.hands.compose(made[:, :num_actions], actions.extras)
        self.recent = torch.cat([self.recent, composed.frames], 1)[:, -self.num_recent :]
        if self.num_recent > 1:
            self.past = known[-(self.num_recent - 1) :]
        return composed.sharpened(self.model.config.sharpen)
