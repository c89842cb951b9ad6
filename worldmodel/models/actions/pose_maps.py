"""Actions as pictures: the commanded poses of the hands, drawn where the camera sees them.

    transition     0   1   2   3 | 4   5   6   7      each is drawn, with a blob for every point of a hand
    latent frame 0 |----- 1 -----|----- 2 -----|      four drawings are channels of one latent frame

Maps are finer than the latent grid by `samples` on each side; the fine grid is folded into channels.
A hand's frame: x = approach direction, y = closing direction of the fingers, z across both. Its origin is the
wrist, TOOL_OFFSET before the center between the fingertips.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.models.actions.protocol import ActionEmbedding, PatchProjection, PathConfig, PathShape
from worldmodel.types import FRAMES_PER_LATENT, Extras, Row, Transitions

ARMS = ("left", "right")
ARM_COLUMNS = ("x", "y", "z", "qw", "qx", "qy", "qz", "gripper")
HAND_POINTS = ("wrist", "tool", "finger", "other finger", "axis", "opening")  # in this order, for each arm
TOOL_OFFSET = 0.12  # m from the wrist to the center between the fingertips, as in RoboTwin
HALF_OPENING = 0.05  # m from that center to each finger of an open hand
AXIS_LENGTH = 0.06  # m, of the third axis: tells which way the hand is turned about its fingers
UNIT_DEPTH = 0.5  # m before the camera, where inverse depth is 1
NEAREST = 0.02  # m before the camera: what is nearer, or behind it, is not drawn
FARTHEST_OUT = 4.0  # picture widths: points further out are all alike
POSE = len(ARMS) * len(ARM_COLUMNS)  # numbers of both hands
INSTEAD = "set model.actions.pose_maps=null"
TOOL = HAND_POINTS.index("tool")
MARKED = [HAND_POINTS.index(name) for name in ("tool", "finger", "other finger")]
HAND_COLORS = ((255, 0, 0), (0, 0, 255))  # left, right
# Per hand: a blob for each point, and one at the tool that weighs its inverse depth.
DRAWN = len(ARMS) * (len(HAND_POINTS) + 1)
SAMPLES = 2  # of a map, per latent and side
SIGMA = 0.7  # of a blob, in latents
MAP_CHANNELS = FRAMES_PER_LATENT * DRAWN * SAMPLES**2  # of the maps of one latent frame


@dataclass(frozen=True)
class PoseMapsConfig(PathConfig):
    """Hand poses, drawn where the camera sees them: for actions that are poses, and known cameras."""

    # Arms follow their targets late; measured on the tabletop: 0.37 of 0.12 s
    command_lag: float = 0.0  # fraction of the last commanded motion not yet executed at frame time

    version: ClassVar[int] = 3
    regimes: ClassVar[tuple[str, ...]] = ("acg",)
    summary: ClassVar[str] = "hand poses drawn into the picture through the camera's matrices"
    map_channels: ClassVar[int] = MAP_CHANNELS
    on_backbone: ClassVar[bool] = True
    needs_views: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ranges(self, command_lag=(0.0, 1.0))

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        """Poses of the last three commands, and the camera matrix of the frame after the transition."""
        return {"poses": Row((3, POSE)), "projections": Row((3, 4))}

    def read(self, clip: Transitions) -> Extras:
        """Needs absolute poses and one camera whose matrices are known."""
        if clip.views is None or clip.changes:
            changes = f"got changes ({', '.join(clip.changes)}; with data.clip.merge=sum all are)"
            why = clip.why_no_views or changes
            raise ValueError(
                f"{clip.source}: pose maps draw absolute poses through a camera: {why}; {INSTEAD}"
            )
        try:
            poses = pose_columns(torch.cat([clip.before.to(clip.actions), clip.actions]), clip.names)
        except ValueError as error:
            raise ValueError(f"{clip.source}: {error}") from error
        return {"poses": torch.stack([poses[:-2], poses[1:-1], poses[2:]], 1), "projections": clip.views[1:]}

    def mark(self, images: UInt8[np.ndarray, "t H W 3"], extras: Extras) -> UInt8[np.ndarray, "t H W 3"]:
        """Dots of HAND_COLORS at tool and fingers of each hand where they are in view."""
        marked, size = images.copy(), images.shape[1:3]
        points = (
            hand_points(extras["poses"][:, -1], extras["projections"])
            .unflatten(1, (len(ARMS), len(HAND_POINTS)))[:, :, MARKED]
            .numpy()
        )
        for frame, hands in zip(marked[1:], points, strict=True):
            for color, hand in zip(HAND_COLORS, hands, strict=True):
                for u, v, _, weight in hand:
                    row, column = int(v * size[0]), int(u * size[1])
                    if weight and 0 <= v < 1 and 0 <= u < 1:
                        frame[row, column] = color
        return marked

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        return PoseMaps(shape, self.command_lag)


class PoseMaps(nn.Module):
    """Draws the hands and projects the drawing into the embedded patches."""

    def __init__(self, shape: PathShape, command_lag: float = 0.0) -> None:
        super().__init__()
        self.drawing = HandDrawing(shape.grid, command_lag=command_lag)
        self.project = PatchProjection(MAP_CHANNELS, shape)

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        maps = self.drawing(extras, missing)
        return ActionEmbedding(places=self.project(maps), maps=maps)


class HandDrawing(nn.Module):
    """Draws points of hands onto the latent grid; has no weights."""

    def __init__(
        self, grid: tuple[int, int], *, samples: int = SAMPLES, sigma: float = SIGMA, command_lag: float = 0.0
    ) -> None:
        """Maps for one size of picture.

        Args:
            grid: height and width of the latents.
            samples: of a map per latent and side.
            sigma: of a blob, in latents.
            command_lag: fraction of the last commanded motion not yet executed at frame time.
        """
        super().__init__()
        self.grid, self.samples, self.sigma, self.command_lag = grid, samples, sigma, command_lag

    def forward(
        self, extras: Extras, missing: Bool[Tensor, "b f"] | None = None
    ) -> Float[Tensor, "b f m h w"]:
        """Maps of every latent frame: empty for frame 0, and for those whose actions are missing."""
        _, before, now = extras["poses"].unbind(2)
        points = hand_points(apply_command_lag(now, before, self.command_lag), extras["projections"])
        drawn = self.draw(_with_depth(points))
        folded = rearrange(
            drawn,
            "b (f r) c (h p) (w q) -> b f (r c p q) h w",
            r=FRAMES_PER_LATENT,
            p=self.samples,
            q=self.samples,
        )
        maps = F.pad(folded, (0, 0, 0, 0, 0, 0, 1, 0))
        return maps if missing is None else maps.masked_fill(missing[:, :, None, None, None], 0.0)

    def draw(self, points: Float[Tensor, "b n c 4"]) -> Float[Tensor, "b n c y x"]:
        """A blob exp(-r^2 / 2 sigma^2) for every point, times its weight, on the fine grid."""
        height, width = self.grid
        x, y = self._profile(points[..., 0], width), self._profile(points[..., 1], height)
        return (points[..., 3:] * y)[..., None] * x[..., None, :]

    def _profile(self, place: Float[Tensor, "*b"], size: int) -> Float[Tensor, "*b fine"]:
        """A Gaussian along one side: blobs are products of two."""
        fine = size * self.samples
        centers = (torch.arange(fine, device=place.device, dtype=place.dtype) + 0.5) / fine
        return torch.exp(-0.5 * ((centers - place[..., None]) * (size / self.sigma)).square())


def _with_depth(points: Float[Tensor, "b n p 4"]) -> Float[Tensor, "b n c 4"]:
    """The points, and of each hand its tool again, with the inverse depth as its weight."""
    hands = points.unflatten(2, (len(ARMS), len(HAND_POINTS)))
    tool = hands[:, :, :, TOOL : TOOL + 1]
    near = torch.cat([tool[..., :3], tool[..., 2:3]], -1)
    return torch.cat([hands, near], 3).flatten(2, 3)


def apply_command_lag(
    now: Float[Tensor, "*b 16"], before: Float[Tensor, "*b 16"], lag: float
) -> Float[Tensor, "*b 16"]:
    """Where the hands are when the frame is taken: `lag` of the last commanded motion is not yet executed."""
    if not lag:
        return now
    hands, earlier = (x.unflatten(-1, (len(ARMS), len(ARM_COLUMNS))) for x in (now, before))
    turn, earlier_turn = hands[..., 3:7], earlier[..., 3:7]
    # q and -q are the same turn: the nearer one is taken.
    sign = torch.where((turn * earlier_turn).sum(-1, keepdim=True) < 0, -1.0, 1.0)
    earlier = torch.cat([earlier[..., :3], sign * earlier_turn, earlier[..., 7:]], -1)
    return (hands + lag * (earlier - hands)).flatten(-2)


def pose_columns(robot_actions: Float[Tensor, "*n a"], names: Sequence[str]) -> Float[Tensor, "*n 16"]:
    """The poses of both arms among raw actions; of an arm that is not there, zeros, which are no rotation."""
    actions = robot_actions.float()
    place = {name: number for number, name in enumerate(names)}
    wanted = [[f"{arm}_{column}" for column in ARM_COLUMNS] for arm in ARMS]
    arms = [
        actions[..., [place[name] for name in columns]] if place.keys() >= set(columns) else None
        for columns in wanted
    ]
    if not has_poses(names):
        raise ValueError(
            f"pose maps need actions that are hand poses, {', '.join(wanted[0])} and the same of right, got "
            f"{', '.join(names)}: set data.action_space=pose_commands (or measured_poses), or {INSTEAD}"
        )
    absent = actions.new_zeros(*actions.shape[:-1], len(ARM_COLUMNS))
    return torch.cat([absent if arm is None else arm for arm in arms], -1)


def has_poses(names: Sequence[str]) -> bool:
    """Whether actions of these names hold the pose of a hand."""
    return any(set(names) >= {f"{arm}_{column}" for column in ARM_COLUMNS} for arm in ARMS)


def hand_points(
    poses: Float[Tensor, "*b 16"], projections: Float[Tensor, "*b 3 4"]
) -> Float[Tensor, "*b p 4"]:
    """(u, v, inverse depth, weight) of HAND_POINTS of the left hand, then of the right one.

    The weight is 1 before the camera and 0 behind it; the last point of a hand lies at the tool and weighs
    what the hand is open. Differentiable in the poses.
    """
    position, quaternion, opening = poses.unflatten(-1, (2, len(ARM_COLUMNS))).split((3, 4, 1), -1)
    norm = quaternion.norm(dim=-1, keepdim=True)
    axes = _axes(quaternion / norm.clamp_min(1e-6))
    world = position[..., None, :] + _local_points(opening) @ axes
    turned = torch.einsum("...nij,...nahj->...nahi", projections[..., :3], world)
    seen = turned + projections[..., None, None, :, 3]
    depth = seen[..., 2:]
    is_seen = (depth > NEAREST) & (norm[..., None, :] > 1e-3)
    safe = torch.where(is_seen, depth, torch.ones_like(depth))
    place = (seen[..., :2] / safe).clamp(-FARTHEST_OUT, FARTHEST_OUT)
    weight = torch.cat([torch.ones_like(depth[..., 1:, :]), opening[..., None, :]], -2) * is_seen
    return torch.cat([place, UNIT_DEPTH / safe * is_seen, weight], -1).flatten(-3, -2)


def hand_frames(
    poses: Float[Tensor, "n 16"],
) -> tuple[Float[Tensor, "n arm 3 3"], Float[Tensor, "n arm 3"]]:
    """Axes of both hands in the world (rows), and their tool points."""
    position, quaternion, _ = poses.unflatten(-1, (2, len(ARM_COLUMNS))).split((3, 4, 1), -1)
    axes = _axes(quaternion / quaternion.norm(dim=-1, keepdim=True).clamp_min(1e-6))
    return axes, position + TOOL_OFFSET * axes[..., 0, :]


def _local_points(opening: Float[Tensor, "*b 1"]) -> Float[Tensor, "*b 6 3"]:
    """HAND_POINTS in the frame of the hand."""
    zero = torch.zeros_like(opening)
    tool, axis = torch.full_like(opening, TOOL_OFFSET), torch.full_like(opening, AXIS_LENGTH)
    side = HALF_OPENING * opening.clamp(0, 1)
    rows = [
        (zero, zero, zero),
        (tool, zero, zero),
        (tool, side, zero),
        (tool, -side, zero),
        (tool, zero, axis),
        (tool, zero, zero),
    ]
    return torch.stack([torch.cat(row, -1) for row in rows], -2)


def _axes(quaternion: Float[Tensor, "*b 4"]) -> Float[Tensor, "*b 3 3"]:
    """Rows: the local x, y and z axes in the world, of unit quaternions w x y z."""
    w, x, y, z = quaternion.unbind(-1)
    rows = [
        (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
        (2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
        (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)
