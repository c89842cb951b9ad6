"""A stream of frames from a model of whole clips: each step generates a clip and keeps what has actions."""

import copy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.actions.interface import TextContext
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.action_conditions import ActionConditions
from worldmodel.pipelines.hand_follower import HandFollower
from worldmodel.pipelines.sampling import Generators, continue_clip
from worldmodel.pipelines.step_actions import StepActions
from worldmodel.types import num_video_frames


class ChunkStream:
    """Continues the recent frames by clips; a step costs as much as a clip, however few its actions are."""

    def __init__(
        self,
        model: WorldModel,
        frames: Float[Tensor, "b t 3 H W"],
        past: StepActions,
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
        self.hands = HandFollower(model, frames, past.track) if hands is None else hands
        self.recent = frames[:, -self.num_recent :]
        self.past = past.part(-(self.num_recent - 1)) if self.num_recent > 1 else StepActions()
        self.sigmas = model.sigmas(num_inference_steps)
        self.text: TextContext = model.text_context(with_keys=True)

    def advance(self, actions: StepActions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        """The frames that so many actions lead to."""
        size = self.model.contract.num_frames - self.num_recent
        steps = [(start, min(start + size, num_actions)) for start in range(0, num_actions, size)]
        return torch.cat([self._clip(actions.part(*step), step[1] - step[0]) for step in steps], 1)

    def copies(self, count: int) -> "ChunkStream":
        """The same stream with every sample so many times."""
        twin = copy.copy(self)
        twin.recent = self.recent.repeat_interleave(count, 0)
        twin.past = self.past.each(lambda x: x.repeat_interleave(count, 0))
        twin.hands = self.hands.copies(count)
        return twin

    def _clip(self, actions: StepActions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        known = self.past.then(actions) if self.num_recent > 1 else actions
        num_frames = self.num_recent + num_actions
        track, start = known.track, self.hands.start
        if track is not None and self.num_recent == 1:
            track = replace(track, start=start)
        conditions = ActionConditions(self.model, known.robot, known.latent, num_frames, track)
        embedding = conditions.embed(self.num_recent, self.recent)
        made = continue_clip(self.model, self.recent, embedding, self.text, self.sigmas, self.generator)
        hands = None if actions.track is None else self.hands.settle(actions.track)
        composed = self.hands.compose(made[:, :num_actions], hands)
        self.recent = torch.cat([self.recent, composed.frames], 1)[:, -self.num_recent :]
        if self.num_recent > 1:
            self.past = known.part(-(self.num_recent - 1))
        return composed.sharpened(self.model.config.sharpen)
