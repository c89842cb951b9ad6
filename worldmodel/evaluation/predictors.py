"""A world model as a function from given frames and actions to video, the only thing evaluation asks for."""

from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.evaluation.held_out import HeldOutClip
from worldmodel.models.world_model.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import num_video_frames

Drive = Literal["robot", "latent"]  # robot actions, or latent actions inferred from the true video (lacg)


class Predict(Protocol):
    """(given frames, actions or None, frames in all, seed) -> video that begins with the given frames.

    Every sample of the batch gets the same noise, so that videos differ by their actions alone.
    """

    def __call__(
        self,
        given: Float[Tensor, "b g 3 H W"],
        actions: Float[Tensor, "b n u"] | None,
        num_frames: int,
        seed: int,
    ) -> Float[Tensor, "b t 3 H W"]: ...


class ModelPredictor:
    """The rollout pipeline as a Predict."""

    def __init__(self, model: WorldModel, num_inference_steps: int = 8, drive: Drive = "robot") -> None:
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
    ) -> Float[Tensor, "b t 3 H W"]:
        """See Predict."""
        is_latent = self.drive == "latent"
        rollout = self.pipeline.rollout(
            given,
            robot_actions=None if is_latent else actions,
            latent_actions=actions if is_latent else None,
            num_frames=num_frames,
            num_inference_steps=self.num_inference_steps,
            generator=[torch.Generator().manual_seed(seed) for _ in given],
        )
        return rollout.frames.cpu()

    @property
    def num_given(self) -> int:
        """Frames that the model must be shown."""
        return num_video_frames(self.pipeline.model.config.history)

    def commands(self, clip: HeldOutClip) -> Float[Tensor, "n u"]:
        """What drives the model along the true video."""
        if self.drive == "robot":
            return clip.actions
        model = self.pipeline.model
        return model.infer_latent_actions(clip.frames[None].to(model.text.device))[0].cpu()

    def command_names(self, clip: HeldOutClip) -> tuple[str, ...]:
        """One name per dimension of the commands that is not padding."""
        if self.drive == "robot":
            return clip.names
        return tuple(f"z{i}" for i in range(self.pipeline.model.config.latent_action_dim))


def predict_each(
    predict: Predict,
    given: Float[Tensor, "g 3 H W"],
    commands: Mapping[str, Float[Tensor, "n u"] | None],
    num_frames: int,
    *,
    seed: int,
    max_batch: int,
) -> dict[str, Float[Tensor, "t 3 H W"]]:
    """The video of every command from the same first frames, with the same noise; None: no actions."""
    videos: dict[str, Tensor] = {}
    told = [(name, actions) for name, actions in commands.items() if actions is not None]
    for first in range(0, len(told), max_batch):
        names, actions = zip(*told[first : first + max_batch], strict=True)
        batch = predict(given.expand(len(names), *given.shape), torch.stack(actions), num_frames, seed)
        videos.update(zip(names, batch, strict=True))
    untold = [name for name, actions in commands.items() if actions is None]
    if untold:
        alone = predict(given[None], None, num_frames, seed)[0]
        videos.update(dict.fromkeys(untold, alone))
    return {name: videos[name] for name in commands}
