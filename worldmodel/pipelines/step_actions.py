"""What a stream hears of the actions of its next transitions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.model import WorldModel
from worldmodel.pipelines.action_conditions import normalize_actions, pose_track_for
from worldmodel.types import CameraMatrices, PoseTrack

RawActions = Float[np.ndarray, "b n raw"] | Float[Tensor, "b n raw"]
StartActions = Float[np.ndarray, "b start raw"] | Float[Tensor, "b start raw"]
Cameras = CameraMatrices | Sequence[CameraMatrices] | None


@dataclass(frozen=True)
class StepActions:
    """What is known of the actions of some transitions; nothing where all are none."""

    robot: Float[Tensor, "b n a"] | None = None  # normalized and padded
    latent: Float[Tensor, "b n k"] | None = None
    track: PoseTrack | None = None  # where the robot actions put the hands, for models that draw poses

    def each(self, change: Callable[[Tensor], Tensor]) -> "StepActions":
        """The same with every known part changed."""
        robot, latent = (None if x is None else change(x) for x in (self.robot, self.latent))
        if self.track is None:
            return StepActions(robot, latent)
        return StepActions(robot, latent, PoseTrack(change(self.track.poses), change(self.track.projections)))

    def to(self, like: Tensor) -> "StepActions":
        """The same on the device and in the type of another tensor."""
        track = None if self.track is None else self.track.each(lambda x: x.to(like))
        return replace(self.each(lambda x: x.to(like)), track=track)

    def part(self, start: int, stop: int | None = None) -> "StepActions":
        """Those of transitions start to stop."""
        return self.each(lambda x: x[:, start:stop])

    def then(self, others: "StepActions") -> "StepActions":
        """These and the others behind them, where both are known."""
        pairs = ((self.robot, others.robot), (self.latent, others.latent))
        robot, latent = (b if a is None or b is None else torch.cat([a, b], 1) for a, b in pairs)
        if self.track is None or others.track is None:
            return StepActions(robot, latent, others.track)
        poses = torch.cat([self.track.poses, others.track.poses], 1)
        projections = torch.cat([self.track.projections, others.track.projections], 1)
        return StepActions(robot, latent, PoseTrack(poses, projections))

    def held(self, num_actions: int) -> "StepActions":
        """So many, the last one again and again where there are fewer."""
        return self.each(
            lambda x: torch.cat([x, x[:, -1:].expand(-1, num_actions - x.shape[1], *x.shape[2:])], 1)
        )


def read_actions(
    model: WorldModel,
    robot_actions: RawActions,
    embodiments: Sequence[str],
    cameras: Cameras = None,
    first_frame: int = 0,
) -> StepActions:
    """Commands in the robots' own units, from a frame of the video on."""
    normalized, track = normalize_actions(model, robot_actions, embodiments), None
    if model.config.draws_poses:
        track = pose_track_for(model, robot_actions, embodiments, cameras, first_frame=first_frame)
    return StepActions(normalized, track=track)


def read_start(
    model: WorldModel, start_actions: StartActions | None, embodiments: Sequence[str], cameras: Cameras = None
) -> PoseTrack | None:
    """What is known of the hands in the first frame, from the one or two commands before it."""
    if start_actions is None or not model.config.draws_poses:
        return None
    raw = torch.as_tensor(start_actions)
    if raw.ndim != 3 or raw.shape[1] not in (1, 2):
        raise ValueError(
            f"start_actions are 1 or 2 commands of each sample, [b n raw], got {tuple(raw.shape)}"
        )
    track = pose_track_for(model, raw[:, [0, -1]], embodiments, cameras, first_frame=-1)
    if track is None:
        return None
    return PoseTrack(track.poses, track.projections[:, :1].expand(-1, 2, -1, -1))
