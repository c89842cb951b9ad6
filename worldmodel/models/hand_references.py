"""Reference images of each robot's hands in various poses, for hands that come into view.

A given frame shows only the hands that are in it. A robot's training frames show its hands from all sides. A
few of them are stored with the model: for each robot and arm those whose poses differ most from each other.
"""

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from worldmodel.models.actions.pose_maps import ARMS, HAND_POINTS, hand_frames, hand_points
from worldmodel.models.pose_track import PoseTrack
from worldmodel.types import to_unit_range

MARGIN = 0.08  # of the picture: a hand counts as fully visible if its points are further from the border
TOOL = HAND_POINTS.index("tool")
PLACE_WEIGHT, DEPTH_WEIGHT = 1.5, 1.0  # of image position and inverse depth, relative to axes and opening


class HandReferences(nn.Module):
    """Frames and poses of every robot, by index, and arm."""

    frames: UInt8[Tensor, "robot arm k 3 H W"]
    poses: Float[Tensor, "robot arm k 16"]
    projections: Float[Tensor, "robot arm k 3 4"]
    is_known: Bool[Tensor, "robot arm"]

    def __init__(self, num_robots: int, count: int, size: tuple[int, int]) -> None:
        """Empty slots for `count` references per arm of each robot."""
        super().__init__()
        shape = num_robots, len(ARMS), count
        self.register_buffer("frames", torch.zeros(*shape, 3, *size, dtype=torch.uint8))
        self.register_buffer("poses", torch.zeros(*shape, 16))
        self.register_buffer("projections", torch.zeros(*shape, 3, 4))
        self.register_buffer("is_known", torch.zeros(shape[:2], dtype=torch.bool))

    @property
    def count(self) -> int:
        """Number of references per arm."""
        return self.frames.shape[2]

    def extended(self, num_robots: int) -> "HandReferences":
        """A copy for `num_robots` robots in all; those added have no reference pictures yet."""
        size = self.frames.shape[-2], self.frames.shape[-1]
        more = HandReferences(num_robots, self.count, size)
        for name, buffer in self.named_buffers():
            more.get_buffer(name)[: len(buffer)] = buffer
        return more

    @torch.no_grad()
    def fill(self, robot: int, frames: UInt8[Tensor, "n 3 H W"], hands: PoseTrack) -> None:
        """Select the references of a robot from frames with their hand poses.

        An arm that is fully visible in none of the frames gets no references. The first reference is the
        closest to the mean, each further one is the farthest from those selected.
        """
        features, is_whole = hand_features(hands), whole_hands(hands)
        for arm in range(len(ARMS)):
            known = is_whole[:, arm].nonzero()[:, 0]
            if not len(known):
                continue
            chosen = known[farthest_points(features[known, arm], self.count)]
            self.frames[robot, arm] = frames[chosen]
            self.poses[robot, arm] = hands.poses[chosen]
            self.projections[robot, arm] = hands.projections[chosen]
            self.is_known[robot, arm] = True

    def nearest(
        self, robots: Int[Tensor, " n"], rows: PoseTrack, arm: int
    ) -> tuple[Float[Tensor, "n 3 H W"], PoseTrack, Bool[Tensor, " n"]]:
        """For each pose the closest reference picture, its own pose, and whether there is any."""
        poses, projections = self.poses[robots, arm], self.projections[robots, arm]
        references = PoseTrack(poses.flatten(0, 1), projections.flatten(0, 1))
        known = hand_features(references)[:, arm].unflatten(0, (-1, self.count))
        distance = (known - hand_features(rows)[:, None, arm]).square().sum(-1)
        best = distance.argmin(1)
        hands = PoseTrack(self.poses[robots, arm, best], self.projections[robots, arm, best])
        return to_unit_range(self.frames[robots, arm, best]), hands, self.is_known[robots, arm]


def hand_features(rows: PoseTrack) -> Float[Tensor, "n arm features"]:
    """Features for comparing hands: orientation, opening, image position and inverse depth."""
    axes, _ = hand_frames(rows.poses)
    points = hand_points(rows.poses, rows.projections).unflatten(1, (len(ARMS), len(HAND_POINTS)))[:, :, TOOL]
    opening = rows.poses.unflatten(-1, (len(ARMS), -1))[..., -1:]
    place = PLACE_WEIGHT * points[..., :2].clamp(-1, 2)
    return torch.cat([axes.flatten(2), opening, place, DEPTH_WEIGHT * points[..., 2:3]], -1)


def whole_hands(rows: PoseTrack) -> Bool[Tensor, "n arm"]:
    """Whether all points of each hand are inside the picture."""
    points = hand_points(rows.poses, rows.projections).unflatten(1, (len(ARMS), len(HAND_POINTS)))
    inside = (points[..., :2] > MARGIN) & (points[..., :2] < 1 - MARGIN)
    return inside.all(-1).all(-1) & (points[..., 2] > 0).all(-1)


def farthest_points(features: Float[Tensor, "n d"], count: int) -> Int[Tensor, " count"]:
    """Indices of points that are far from each other; repeated if there are fewer.

    Examples:
        >>> import torch
        >>> from worldmodel.models.hand_references import farthest_points
        >>> farthest_points(torch.tensor([[0.0], [0.1], [1.0], [2.0]]), 3).tolist()
        [2, 3, 0]
    """
    chosen = [int((features - features.mean(0)).square().sum(1).argmin())]
    distance = features.new_full((len(features),), torch.inf)
    while len(chosen) < count:
        distance = torch.minimum(distance, (features - features[chosen[-1]]).square().sum(1))
        chosen.append(int(distance.argmax()))
    return torch.tensor(chosen, device=features.device)
