"""A world model as `generator(latent, actions) -> frames`, for the diagnostics of its action channel."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.diagnostics.actions.action_channel import VideoGenerator
from worldmodel.models.actions.published.kept_first import history_actions, history_frames
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.commands import rows_of
from worldmodel.pipelines.session import compose, known_frame
from worldmodel.pipelines.whole_clip import embed_clip, sample
from worldmodel.types import Actions, Transitions, map_tensors, num_video_frames, to_unit_range


@dataclass(frozen=True)
class ClipView:
    """The robot and the recorded transitions of clips, from which action paths read their rows."""

    embodiment: str
    transitions: tuple[Transitions, ...]  # of each sample, or one for any number of samples

    def actions(self, model: WorldModel, actions: Float[Tensor, "b n a"]) -> Actions:
        """Normalized actions together with the rows that the model's action paths read."""
        raw = model.normalizer.denormalize_tensor(actions.cpu(), self.embodiment)  # where transitions are
        clips = self.transitions * (len(raw) if len(self.transitions) == 1 else 1)
        own = [replace(clip, actions=one) for clip, one in zip(clips, raw, strict=True)]
        return Actions(actions, extras=rows_of(model, own, [self.embodiment] * len(own)))


def driven(model: WorldModel, actions: Float[Tensor, "b n a"], view: ClipView | None) -> Actions:
    """Actions with the rows that the model's paths read, if they read any."""
    if model.config.reader is None:
        return Actions(actions)
    if view is None:
        raise ValueError("this model's action paths read more than actions: pass the clip's view")
    return view.actions(model, actions)


def past_and_ahead(model: WorldModel, actions: Actions, num_given: int) -> tuple[Actions, Actions]:
    """Split actions into those between the given frames that the model sees and those that follow."""
    moved = map_tensors(actions, lambda part: part.to(model.device))
    count, keeps_first = num_video_frames(model.config.history), model.config.actions.keeps_first
    return history_actions(moved, num_given - 1, count, keeps_first), moved[num_given - 1 :]


def world_model_channel(
    model: WorldModel,
    frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
    *,
    num_inference_steps: int = 0,
    view: ClipView | None = None,
) -> VideoGenerator:
    """Wrap a world model as a function of noise and actions that returns the frames after the given ones.

    The noise has the shape of the whole clip's latents [b c f h w].

    Actions are normalized, one per transition from the first given frame on, and reach the model as in a
    rollout: a latent-action model gets them through its controller, from the last given frame on, and a
    model whose paths read more than actions needs `view`. Attention on CPU has no forward-mode derivative:
    use differences.
    """
    recent = recent_frames(model, frames)
    with torch.no_grad():
        history, text = model.encode(recent), model.text_context()
    sigmas, last = model.sigmas(num_inference_steps), recent[:, -1]

    def generate(noise: Tensor, actions: Tensor) -> Tensor:
        past, ahead = past_and_ahead(model, driven(model, actions, view), frames.shape[1])
        embedding, _ = embed_clip(model, recent, past, ahead)
        made = sample(model, history, noise, embedding, text, sigmas)[:, recent.shape[1] :]
        known = known_frame(model, last, past, -1) or known_frame(model, last, ahead, 0)
        if known is None:
            return made
        composed, _ = compose(model, made, ahead.pad_last(made.shape[1]), known)
        return composed.sharpened(model.config.sharpen)

    return generate


def recent_frames(
    model: WorldModel, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]
) -> Float[Tensor, "b recent 3 H W"]:
    """The last given frames, as many as the model's history holds, in [0, 1]; refuses what has no channel."""
    if model.config.regime == "no_action":
        raise ValueError("a model of regime no_action has no action channel to diagnose")
    if model.training:
        raise ValueError("the world model is in training mode: call .eval() first")
    if frames.shape[1] < model.config.num_given:
        raise ValueError(
            f"expected the {model.config.num_given} frames of the model's history, got {frames.shape[1]}"
        )
    count, keeps_first = num_video_frames(model.config.history), model.config.actions.keeps_first
    return history_frames(to_unit_range(frames.to(model.device)), count, keeps_first)
