"""What a rollout hears of actions, chunk by chunk, in each regime."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.compositor import Composed, KnownFrame
from worldmodel.models.model import WorldModel
from worldmodel.types import FRAMES_PER_LATENT, Actions, Extras


class ActionConditions:
    """The actions of a whole video, cut into windows of one clip; beyond the end the last action is held.

    A latent-action model given robot actions gets them through its controller, from the last known frame of
    each chunk. Without actions every latent frame gets the null embedding.
    """

    def __init__(
        self,
        model: WorldModel,
        actions: Actions,
        num_frames: int | None = None,
        robots: Int[Tensor, " b"] | None = None,
    ) -> None:
        """The actions of so many frames.

        Args:
            model: that they drive.
            actions: of all transitions, or of none where all are unknown.
            num_frames: of the video, where there are no actions to tell.
            robots: number of each sample's embodiment, where known.
        """
        check_actions(model, actions)
        self.model, self.robot_actions, self.latent_actions = model, actions.robot, actions.latent
        self.extras, self.robots = actions.extras, robots
        known = actions.latent if actions.robot is None else actions.robot
        self.num_frames = _length(known, num_frames)
        self._past: Tensor | None = None  # latent actions that led to the recent frames

    def embed(self, num_known: int, recent: Float[Tensor, "b t 3 H W"]) -> ActionEmbedding:
        """Embedding of the clip that starts with the recent frames; their last is frame num_known - 1."""
        num_latents = self.model.contract.latent_grid[0]
        missing = torch.zeros(len(recent), num_latents, dtype=torch.bool, device=recent.device)
        extras = self._extras(num_known - recent.shape[1], recent)
        return self.model.embed(self._actions(num_known, recent), extras, missing)

    def _extras(self, start: int, recent: Float[Tensor, "b t 3 H W"]) -> Extras:
        length = self.model.contract.num_frames - 1
        return {name: _window(rows, start, length).to(recent.device) for name, rows in self.extras.items()}

    def compose(
        self, decoded: Float[Tensor, "b n 3 H W"], num_known: int, given: Float[Tensor, "b t 3 H W"]
    ) -> Composed:
        """Frames for those decoded behind so many known ones, of which these were given."""
        if self.model.compositor is None or not self.extras:
            return Composed.still(decoded)
        track, count = self.model.compositor.track, given.shape[1]
        # Frame count - 1 is the last given one: row 0 of the hands is the frame before the rows.
        first = track(self._extras(max(0, count - 2), decoded))
        known = KnownFrame(given[:, -1], first.rows(1, 2) if count > 1 else first.rows(0, 1), self.robots)
        hands = track(self._extras(num_known - 1, decoded)).rows(1)
        return self.model.compose(decoded, hands.rows(0, decoded.shape[1]), known)

    def _actions(self, num_known: int, recent: Float[Tensor, "b t 3 H W"]) -> Float[Tensor, "b n u"] | None:
        length = self.model.contract.num_frames - 1
        start = num_known - recent.shape[1]
        regime = self.model.config.regime
        if self.latent_actions is not None:
            return _window(self.latent_actions, start, length).to(recent)
        if regime == "no_action" or self.robot_actions is None:
            return None
        if regime == "acg":
            return _window(self.robot_actions, start, length).to(recent)
        past = self.model.infer_latent_actions(recent) if self._past is None else self._past
        ahead = _window(self.robot_actions, num_known - 1, length - past.shape[1]).to(recent)
        latent_actions = torch.cat([past, self.model.control(ahead, recent[:, -1])], 1)
        self._past = latent_actions[:, length - past.shape[1] :]
        return latent_actions


def check_actions(model: WorldModel, actions: Actions) -> None:
    """Refuse actions that this model cannot be driven by."""
    _check_choice(model, actions.robot, actions.latent)
    reader = model.config.reader
    if reader is not None and actions.robot is not None and not actions.extras:
        raise ValueError(
            f"the model's action paths need {', '.join(reader.row_shapes)} beside the actions: call the "
            "pipeline with raw actions and cameras=episode.cameras[name], or pass extras"
        )


def _window(
    actions: Shaped[Tensor, "b n *rest"], start: int, length: int
) -> Shaped[Tensor, "b length *rest"]:
    window = actions[:, start : start + length]
    held = actions[:, -1:].expand(-1, length - window.shape[1], *actions.shape[2:])
    return torch.cat([window, held], 1)


def _length(actions: Float[Tensor, "b n u"] | None, num_frames: int | None) -> int:
    """Frames of the whole video."""
    if actions is None:
        if num_frames is None:
            raise ValueError("without actions, num_frames must say how long the video shall be")
        return num_frames
    length = actions.shape[1] + 1
    if num_frames is not None and not length - FRAMES_PER_LATENT < num_frames <= length:
        raise ValueError(f"{length - 1} actions make {length} frames, not {num_frames}")
    return num_frames or length


def _check_choice(
    model: WorldModel,
    robot_actions: Float[Tensor, "b n a"] | None,
    latent_actions: Float[Tensor, "b n k"] | None,
) -> None:
    if robot_actions is not None and latent_actions is not None:
        raise ValueError("a rollout is driven by robot actions or by latent actions, got both")
    if robot_actions is not None and robot_actions.shape[-1] != model.normalizer.width:
        raise ValueError(
            f"expected robot actions padded to {model.normalizer.width} dimensions, "
            f"got {robot_actions.shape[-1]}"
        )
    if latent_actions is not None and model.config.regime != "lacg":
        raise ValueError(f"latent actions need a model of regime lacg, this one is {model.config.regime}")
    if latent_actions is not None and latent_actions.shape[-1] != model.config.latent_action_dim:
        raise ValueError(
            f"expected latent actions of {model.config.latent_action_dim} dimensions, "
            f"got {latent_actions.shape[-1]}"
        )
