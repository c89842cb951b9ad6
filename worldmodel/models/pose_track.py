"""Hand poses in the frames of a clip, for the compositor, read from the rows of `pose_maps`."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.actions.pose_maps import FARTHEST_OUT, NEAREST, apply_command_lag, hand_frames
from worldmodel.types import Extras


@dataclass(frozen=True)
class PoseTrack:
    """Hand poses and camera matrices; one row per frame."""

    poses: Float[Tensor, "*b n 16"]  # left, right: x y z (m, world), quaternion w x y z, opening 0 .. 1
    projections: Float[Tensor, "*b n 3 4"]  # as `Transitions.views`

    def rows(self, start: int, stop: int | None = None) -> "PoseTrack":
        """Select frames."""
        return PoseTrack(self.poses[..., start:stop, :], self.projections[..., start:stop, :, :])


def track_of(extras: Extras, lag: float) -> PoseTrack:
    """Hand poses in the frame before these rows and in the frame after each of them."""
    earlier, before, now = extras["poses"].unbind(-2)
    first = apply_command_lag(before[..., :1, :], earlier[..., :1, :], lag)
    poses = torch.cat([first, apply_command_lag(now, before, lag)], -2)
    views = extras["projections"]
    return PoseTrack(poses, torch.cat([views[..., :1, :, :], views], -3))


def carried_places(now: PoseTrack, then: PoseTrack, size: tuple[int, int]) -> Float[Tensor, "n arm H W uv"]:
    """Position of each pixel in an earlier frame if it had moved rigidly with a hand, for each arm.

    Pixels are assumed to lie in the plane through the tool that faces the camera. Positions are in [-1, 1]
    across the earlier picture, as in `grid_sample`.

    Args:
        now: a row for each picture.
        then: the same of the earlier pictures.
        size: (height, width) of the pictures.
    """
    axes, tool = hand_frames(now.poses)
    axes_then, tool_then = hand_frames(then.poses)
    lens, shift = now.projections[..., :3], now.projections[..., 3]
    depth = torch.einsum("nj,naj->na", lens[:, 2], tool) + shift[:, 2:]
    rays = depth[:, :, None, None] * pixel_rays(*size, depth) - shift[:, None, None]
    world = torch.einsum("nij,napj->napi", torch.linalg.inv(lens), rays)
    local = torch.einsum("naij,napj->napi", axes, world - tool[:, :, None])
    moved = torch.einsum("naji,napj->napi", axes_then, local) + tool_then[:, :, None]
    seen = torch.einsum("nij,napj->napi", then.projections[..., :3], moved)
    seen = seen + then.projections[:, None, None, :, 3]
    place = seen[..., :2] / seen[..., 2:].clamp_min(NEAREST)
    return (2 * place - 1).clamp(-FARTHEST_OUT, FARTHEST_OUT).unflatten(2, size)


def pixel_rays(height: int, width: int, like: Tensor) -> Float[Tensor, "p 3"]:
    """(u, v, 1) of the center of every pixel, row by row."""
    sides = ((torch.arange(side, device=like.device) + 0.5) / side for side in (height, width))
    v, u = torch.meshgrid(*sides, indexing="ij")
    return torch.stack([u, v, torch.ones_like(u)], -1).flatten(0, 1).to(like)
