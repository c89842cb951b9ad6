"""A world model as a function from given frames and actions to video, the only thing evaluation asks for."""

from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.data.pose_tracks import pose_columns
from worldmodel.evaluation.held_out import HeldOutClip
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import PoseTrack, num_video_frames

Drive = Literal["robot", "latent"]  # robot actions, or latent actions inferred from the true video (lacg)


class Predict(Protocol):
    """(given frames, actions or None, frames in all, seed, clip) -> video that begins with the given frames.

    Every sample of the batch gets the same noise, so that videos differ by their actions alone. The clip is
    where the frames come from: whose actions they are, and which camera saw it.
    """

    def __call__(
        self,
        given: Float[Tensor, "b g 3 H W"],
        actions: Float[Tensor, "b n u"] | None,
        num_frames: int,
        seed: int,
        clip: HeldOutClip,
    ) -> Float[Tensor, "b t 3 H W"]: ...


class ModelPredictor:
    """The rollout pipeline as a Predict."""

    def __init__(self, model: WorldModel, num_inference_steps: int = 0, drive: Drive = "robot") -> None:
        if drive == "latent" and model.config.regime != "lacg":
            raise ValueError(f"latent actions need a model of regime lacg, this one is {model.config.regime}")
        self.pipeline, self.num_inference_steps, self.drive = (
            RolloutPipeline(model),
            num_inference_steps,
            drive,
        )

    def __call__(
        self,
        given: Float[Tensor, "b g 3 H W"],
        actions: Float[Tensor, "b n u"] | None,
        num_frames: int,
        seed: int,
        clip: HeldOutClip | None = None,
    ) -> Float[Tensor, "b t 3 H W"]:
        """See Predict; only a model that draws poses needs the clip."""
        is_latent = self.drive == "latent"
        track = None
        if actions is not None and clip is not None and self.draws_poses:
            track, actions = self._pose_track(actions, clip), actions.clamp(-1, 1)
        rollout = self.pipeline.rollout(
            given,
            robot_actions=None if is_latent else actions,
            latent_actions=actions if is_latent else None,
            num_frames=num_frames,
            num_inference_steps=self.num_inference_steps,
            generator=[torch.Generator().manual_seed(seed) for _ in given],
            pose_track=track,
            embodiments=[clip.embodiment] * len(given) if track is not None and clip is not None else (),
        )
        return rollout.frames.cpu()

    @property
    def draws_poses(self) -> bool:
        """Whether the model draws the poses that it is told."""
        return self.pipeline.model.config.draws_poses

    def _pose_track(self, actions: Float[Tensor, "b n a"], clip: HeldOutClip) -> PoseTrack:
        """The poses that these actions mean, whatever was done to them, seen by the camera of the clip."""
        if clip.projections is None:
            raise ValueError(f"{clip.source}: the model draws poses, but the data do not describe the camera")
        raw = self.pipeline.model.normalizer.denormalize_tensor(actions, clip.embodiment)
        start = None if clip.hands is None else clip.hands.each(lambda x: x.expand(len(actions), *x.shape))
        projections = clip.projections.expand(len(actions), *clip.projections.shape)
        return PoseTrack(pose_columns(raw, clip.names), projections, start)

    @property
    def num_given(self) -> int:
        """Frames that the model must be shown."""
        return num_video_frames(self.pipeline.model.config.history)

    def commands(self, clip: HeldOutClip) -> Float[Tensor, "n u"]:
        """What drives the model along the true video."""
        if self.drive == "robot":
            # Poses are drawn where they are, at the ends of the known range too.
            return clip.unclipped if self.draws_poses else clip.actions
        model = self.pipeline.model
        return model.infer_latent_actions(clip.frames[None].to(model.text.device))[0].cpu()

    def command_names(self, clip: HeldOutClip) -> tuple[str, ...]:
        """One name per dimension of the commands that is not padding."""
        if self.drive == "robot":
            return clip.names
        return tuple(f"z{i}" for i in range(self.pipeline.model.config.latent_action_dim))


def predict_each(
    predict: Predict,
    clip: HeldOutClip,
    commands: Mapping[str, Float[Tensor, "n u"] | None],
    *,
    num_given: int,
    seed: int,
    max_batch: int,
) -> dict[str, Float[Tensor, "t 3 H W"]]:
    """The video of every command from the clip's first frames, with the same noise; None: no actions."""
    videos: dict[str, Tensor] = {}
    given, num_frames = clip.frames[:num_given], len(clip.frames)
    told = [(name, actions) for name, actions in commands.items() if actions is not None]
    for first in range(0, len(told), max_batch):
        names, actions = zip(*told[first : first + max_batch], strict=True)
        starts = given.expand(len(names), *given.shape)
        batch = predict(starts, torch.stack(actions), num_frames, seed, clip)
        videos.update(zip(names, batch, strict=True))
    untold = [name for name, actions in commands.items() if actions is None]
    if untold:
        alone = predict(given[None], None, num_frames, seed, clip)[0]
        videos.update(dict.fromkeys(untold, alone))
    return {name: videos[name] for name in commands}
