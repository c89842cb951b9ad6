"""A world model as `generator(latent, actions) -> frames`, for the diagnostics of its action channel."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.data.pose_tracks import pose_columns
from worldmodel.diagnostics.actions.action_channel import VideoGenerator
from worldmodel.diffusion.euler import euler_sample
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.action_conditions import ActionConditions
from worldmodel.types import ClipBatch, PoseTrack, num_video_frames, to_unit_range


@dataclass(frozen=True)
class PoseView:
    """What turns normalized actions into a pose track: whose they are, and the camera of each sample."""

    embodiment: str
    projections: Float[Tensor, "b n 3 4"]
    start: PoseTrack | None = None  # hands of the first frame

    @classmethod
    def of(cls, model: WorldModel, batch: ClipBatch) -> "PoseView | None":
        """The view of a batch of one embodiment; None for a model that draws no poses."""
        if not model.config.draws_poses:
            return None
        assert batch.pose_track is not None, "clips of a model that draws poses have pose tracks"
        name = model.normalizer.embodiments[int(batch.embodiment[0])]
        return cls(name, batch.pose_track.projections, batch.pose_track.start)

    def first(self) -> "PoseView":
        """Of the first sample alone, for any number of its variants."""
        start = self.start and self.start.each(lambda x: x[:1])
        return PoseView(self.embodiment, self.projections[:1], start)

    def track(self, model: WorldModel, actions: Float[Tensor, "b n a"]) -> PoseTrack:
        """The track of these actions; one camera serves any number of samples."""
        raw = model.normalizer.denormalize_tensor(actions, self.embodiment)
        poses = pose_columns(raw, model.normalizer.names_of(self.embodiment))
        start = (
            None
            if self.start is None
            else self.start.each(lambda x: x.to(poses).expand(len(poses), *x.shape[1:]))
        )
        return PoseTrack(poses, self.projections.to(poses).expand(len(poses), -1, -1, -1), start)


def world_model_channel(
    model: WorldModel,
    frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
    *,
    num_inference_steps: int = 0,
    view: PoseView | None = None,
) -> VideoGenerator:
    """One clip behind the given frames: noise[b c f h w] of the whole clip and robot actions -> new frames.

    Actions are normalized, one per transition from the first given frame on, and reach the model as in a
    rollout: a latent-action model hears them through its controller, from the last given frame on, and a
    model that draws poses sees them through `view`. Attention on CPU has no forward-mode derivative: use
    differences.
    """
    num_known, recent = frames.shape[1], recent_frames(model, frames)
    with torch.no_grad():
        history, text = model.encode(recent), model.text_context()
    sigmas = model.sigmas(num_inference_steps)

    def generate(noise: Tensor, actions: Tensor) -> Tensor:
        track = None if view is None else view.track(model, actions)
        conditions = ActionConditions(model, actions, pose_track=track)
        embedding, past = conditions.embed(num_known, recent), history.shape[2]
        future = euler_sample(
            lambda noisy, sigma: model.fdm(noisy, sigma, embedding, text).velocity,
            history,
            noise[:, :, past:],
            sigmas,
        )
        made = model.decode(torch.cat([history, future], 2))[:, recent.shape[1] :]
        return conditions.compose(made, num_known, recent).sharpened(model.config.sharpen)

    return generate


def recent_frames(
    model: WorldModel, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]
) -> Float[Tensor, "b recent 3 H W"]:
    """The last given frames, as many as the model's history holds, in [0, 1]; refuses what has no channel."""
    if model.config.regime == "no_action":
        raise ValueError("a model of regime no_action has no action channel to diagnose")
    if model.training:
        raise ValueError("the world model is in training mode: call .eval() first")
    num_recent = num_video_frames(model.config.history)
    if frames.shape[1] < num_recent:
        raise ValueError(f"expected the {num_recent} frames of the model's history, got {frames.shape[1]}")
    recent = frames[:, -num_recent:].to(model.text.device)
    return to_unit_range(recent)
