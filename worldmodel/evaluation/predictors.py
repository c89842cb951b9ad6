"""A world model as a function from given frames and actions to video, the only thing evaluation asks for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.device import Precision
from worldmodel.evaluation.held_out import HeldOutClip
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.commands import rows_of
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions, Extras

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

    def __init__(
        self,
        model: WorldModel,
        num_inference_steps: int = 0,
        drive: Drive = "robot",
        mixed_precision: Precision = "auto",
    ) -> None:
        if drive == "latent" and model.config.regime != "lacg":
            raise ValueError(f"latent actions need a model of regime lacg, this one is {model.config.regime}")
        self.pipeline, self.num_inference_steps, self.drive = (
            RolloutPipeline(model, mixed_precision=mixed_precision),
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
        """See Predict; only a model whose action paths read more than actions needs the clip."""
        is_latent, extras = self.drive == "latent", {}
        if actions is not None and clip is not None and self.reads_extras:
            extras, actions = self._extras(actions, clip), actions.clamp(-1, 1)
        rollout = self.pipeline.rollout(
            given,
            Actions(latent=actions) if is_latent else Actions(actions, extras=extras),
            num_frames=num_frames,
            num_inference_steps=self.num_inference_steps,
            generator=[torch.Generator().manual_seed(seed) for _ in given],
            embodiments=[clip.embodiment] * len(given) if extras and clip is not None else (),
        )
        return rollout.frames

    @property
    def reads_extras(self) -> bool:
        """Whether the model's action paths read more than scaled actions."""
        return self.pipeline.model.config.reader is not None

    def _extras(self, actions: Float[Tensor, "b n a"], clip: HeldOutClip) -> Extras:
        """The rows of these actions, whatever was done to them, in the place of the clip's own."""
        model = self.pipeline.model
        raw = model.normalizer.denormalize_tensor(actions, clip.embodiment)
        clips = [replace(clip.transitions, actions=one) for one in raw]
        return rows_of(model, clips, [clip.embodiment] * len(clips))

    @property
    def num_given(self) -> int:
        """Frames that the model must be shown."""
        return self.pipeline.model.config.num_given

    def commands(self, clip: HeldOutClip) -> Float[Tensor, "n u"]:
        """What drives the model along the true video."""
        if self.drive == "robot":
            if not self.reads_extras:
                return clip.actions
            # Rows are read where the commands are, at the ends of the known range too.
            normalizer = self.pipeline.model.normalizer
            return normalizer.normalize(clip.transitions.actions.numpy(), clip.embodiment, clip=False)
        model = self.pipeline.model
        return model.infer_latent_actions(clip.frames[None].to(model.device))[0].cpu()

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
