"""What a rollout hears of actions, chunk by chunk, in each regime."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.data.pose_tracks import clip_projections, pose_columns, settled_track
from worldmodel.models.actions.interface import ActionEmbedding
from worldmodel.models.compositor import Composed, KnownFrame
from worldmodel.models.model import WorldModel
from worldmodel.tensors import check_numbers
from worldmodel.types import CameraMatrices, PoseTrack


class ActionConditions:
    """The actions of a whole video, cut into windows of one clip; beyond the end the last action is held.

    A latent-action model given robot actions gets them through its controller, from the last known frame of
    each chunk. Without actions every latent frame gets the null embedding.
    """

    def __init__(
        self,
        model: WorldModel,
        robot_actions: Float[Tensor, "b n a"] | None = None,
        latent_actions: Float[Tensor, "b n k"] | None = None,
        num_frames: int | None = None,
        pose_track: PoseTrack | None = None,
        robots: Int[Tensor, " b"] | None = None,
    ) -> None:
        """The actions of so many frames.

        Args:
            model: that they drive.
            robot_actions: normalized and padded.
            latent_actions: instead of them (lacg).
            num_frames: of the video, where there are no actions to tell.
            pose_track: of the robot actions, for a model that draws poses.
            robots: number of each sample's embodiment, where known.
        """
        check_actions(model, robot_actions, latent_actions, pose_track)
        self.model, self.robot_actions, self.latent_actions = model, robot_actions, latent_actions
        self.pose_track, self.robots = pose_track, robots
        self.hands = None if pose_track is None else settled_track(pose_track, model.config.command_lag)
        self.num_frames = _length(latent_actions if robot_actions is None else robot_actions, num_frames)
        self._past: Tensor | None = None  # latent actions that led to the recent frames

    def embed(self, num_known: int, recent: Float[Tensor, "b t 3 H W"]) -> ActionEmbedding:
        """Embedding of the clip that starts with the recent frames; their last is frame num_known - 1."""
        num_latents = self.model.contract.latent_grid[0]
        actions = self._actions(num_known, recent)
        missing = torch.zeros(len(recent), num_latents, dtype=torch.bool, device=recent.device)
        if self.robot_actions is None and self.latent_actions is None:
            missing[:] = True
        return self.model.interface(actions, missing, self._track(num_known - recent.shape[1], recent))

    def _track(self, start: int, recent: Float[Tensor, "b t 3 H W"]) -> PoseTrack | None:
        if self.hands is None:
            return None
        length, hands = self.model.contract.num_frames - 1, self.hands
        projections = _window(hands.projections.flatten(2), start, length).unflatten(2, (3, 4))
        return PoseTrack(_window(hands.poses, start, length).to(recent), projections.to(recent))

    def compose(
        self, decoded: Float[Tensor, "b n 3 H W"], num_known: int, given: Float[Tensor, "b t 3 H W"]
    ) -> Composed:
        """Frames for those decoded behind so many known ones, of which these were given."""
        if self.hands is None:
            return Composed.still(decoded)
        count = given.shape[1]
        last = self.hands.rows(count - 2, count - 1) if count > 1 else self.hands.known_start().rows(1)
        rows = self._track(num_known - 1, decoded)
        assert rows is not None, "hands are known"
        known = KnownFrame(given[:, -1], last.to(decoded.device), self.robots)
        return self.model.compose(decoded, rows.rows(0, decoded.shape[1]), known)

    def _actions(self, num_known: int, recent: Float[Tensor, "b t 3 H W"]) -> Float[Tensor, "b n u"]:
        length = self.model.contract.num_frames - 1
        start = num_known - recent.shape[1]
        regime = self.model.config.regime
        if self.latent_actions is not None:
            return _window(self.latent_actions, start, length).to(recent)
        if regime == "no_action" or self.robot_actions is None:
            return recent.new_zeros(len(recent), length, self.model.condition_dim)
        if regime == "acg":
            return _window(self.robot_actions, start, length).to(recent)
        past = self.model.infer_latent_actions(recent) if self._past is None else self._past
        ahead = _window(self.robot_actions, num_known - 1, length - past.shape[1]).to(recent)
        latent_actions = torch.cat([past, self.model.control(ahead, recent[:, -1])], 1)
        self._past = latent_actions[:, length - past.shape[1] :]
        return latent_actions


def normalize_actions(
    model: WorldModel,
    robot_actions: Float[np.ndarray, "b n raw"] | Float[Tensor, "b n raw"],
    embodiments: Sequence[str],
    action_names: Sequence[str] | None = None,
) -> Float[Tensor, "b n a"]:
    """Commands in the robots' own units, one embodiment for each sample, as the model takes them."""
    if len(embodiments) != len(robot_actions):
        raise ValueError(
            f"expected one embodiment for all samples or {len(robot_actions)}, one for each, of "
            f"{', '.join(model.normalizer.embodiments)}; got {list(embodiments)}"
        )
    raw = check_numbers(torch.as_tensor(robot_actions).cpu().double(), "actions").numpy()
    normalize = model.normalizer.normalize
    return torch.stack(
        [normalize(row, name, action_names) for row, name in zip(raw, embodiments, strict=True)]
    )


def pose_track_for(
    model: WorldModel,
    robot_actions: Float[np.ndarray, "b n raw"] | Float[Tensor, "b n raw"],
    embodiments: Sequence[str],
    cameras: CameraMatrices | Sequence[CameraMatrices] | None,
    *,
    first_frame: int = 0,
) -> PoseTrack | None:
    """The track of raw actions, for a model that draws poses.

    Args:
        model: knows the names of the actions and how its pictures are cut.
        robot_actions: in the robot's own units.
        embodiments: one for each sample.
        cameras: for all samples, or one for each; static, or with one matrix per frame of the video. None:
            the camera of training, if it never moved; otherwise there is no track.
        first_frame: of the video, which action 0 leads on from.
    """
    raw, contract = check_numbers(torch.as_tensor(robot_actions), "actions"), model.contract
    names = [model.normalizer.names_of(embodiment) for embodiment in embodiments]
    poses = torch.stack([pose_columns(row, known) for row, known in zip(raw, names, strict=True)])
    if cameras is None:
        if not contract.projection:
            return None
        projection = torch.tensor(contract.projection).view(3, 4)
        return PoseTrack(poses, projection.expand(*raw.shape[:2], 3, 4))
    each = [cameras] * len(raw) if isinstance(cameras, CameraMatrices) else list(cameras)
    if len(each) != len(raw):
        raise ValueError(f"expected one camera for all samples or {len(raw)}, one for each, got {len(each)}")
    frames = range(first_frame + 1, first_frame + 1 + raw.shape[1])
    size = contract.height, contract.width
    return PoseTrack(
        poses,
        torch.stack([clip_projections(camera, frames, size, contract.aspect) for camera in each]),
    )


def check_actions(
    model: WorldModel,
    robot_actions: Float[Tensor, "b n a"] | None,
    latent_actions: Float[Tensor, "b n k"] | None,
    pose_track: PoseTrack | None,
) -> None:
    """Refuse actions that this model cannot be driven by."""
    _check_choice(model, robot_actions, latent_actions)
    _check_track(model, robot_actions, pose_track)


def _check_track(
    model: WorldModel, robot_actions: Float[Tensor, "b n a"] | None, pose_track: PoseTrack | None
) -> None:
    if model.config.draws_poses and robot_actions is not None and pose_track is None:
        raise ValueError(
            "this model draws hand poses into the picture (action_path adaln+pose_maps) and has to know the "
            "camera: pass cameras=episode.cameras[name] to the pipeline, or a pose_track to rollout"
        )


def _window(actions: Float[Tensor, "b n u"], start: int, length: int) -> Float[Tensor, "b length u"]:
    window = actions[:, start : start + length]
    held = actions[:, -1:].expand(-1, length - window.shape[1], -1)
    return torch.cat([window, held], 1)


def _length(actions: Float[Tensor, "b n u"] | None, num_frames: int | None) -> int:
    """Frames of the whole video."""
    if actions is None:
        if num_frames is None:
            raise ValueError("without actions, num_frames must say how long the video shall be")
        return num_frames
    length = actions.shape[1] + 1
    if num_frames not in (None, length):
        raise ValueError(f"{length - 1} actions make {length} frames, not {num_frames}")
    return length


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
