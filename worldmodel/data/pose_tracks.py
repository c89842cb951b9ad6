"""Commanded hand poses and the camera they are seen by, and where parts of a hand appear in the picture.

A hand's frame: x = approach direction, y = closing direction of the fingers, z across both. Its origin is the
wrist, TOOL_OFFSET before the center between the fingertips.

    world point --[K (R|t)]--> pixels of the recording --[crop, resize]--> u, v in [0, 1] of the picture
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import Aspect, ClipConfig, clip_offsets, crop_box
from worldmodel.data.layouts import JOINT
from worldmodel.types import CameraMatrices, Episode, PoseTrack

ARMS = ("left", "right")
ARM_COLUMNS = ("x", "y", "z", "qw", "qx", "qy", "qz", "gripper")
HAND_POINTS = ("wrist", "tool", "finger", "other finger", "axis", "opening")  # in this order, for each arm
TOOL_OFFSET = 0.12  # m from the wrist to the center between the fingertips, as in RoboTwin
HALF_OPENING = 0.05  # m from that center to each finger of an open hand
AXIS_LENGTH = 0.06  # m, of the third axis: tells which way the hand is turned about its fingers
UNIT_DEPTH = 0.5  # m before the camera, where inverse depth is 1
NEAREST = 0.02  # m before the camera: what is nearer, or behind it, is not drawn
FARTHEST_OUT = 4.0  # picture widths: points further out are all alike
INSTEAD = "set model.action_path to adaln, adaln+map or adaln+tokens"


def clip_pose_track(
    episode: Episode, start: int, robot_actions: Float[np.ndarray, "n a"], config: ClipConfig
) -> PoseTrack:
    """The track of the clip that starts at this recorded frame, whose raw actions are given."""
    camera = choose_camera(episode, config.camera).name
    if JOINT in camera:
        raise ValueError(
            f"{episode.source}: pose maps go into the picture of one camera, got {camera}: name one in "
            f"data.clip.camera, or {INSTEAD}"
        )
    if camera not in episode.cameras:
        known = ", ".join(episode.cameras) or "no camera"
        raise ValueError(
            f"{episode.source}: pose maps need intrinsics and extrinsics of camera {camera!r}, the data "
            f"describe {known}: {INSTEAD}"
        )
    if config.merge == "sum" or episode.delta_actions:
        changes = ", ".join(episode.delta_actions or ()) or f"data.clip.merge={config.merge}"
        raise ValueError(
            f"{episode.source}: pose maps draw absolute poses, got changes ({changes}): {INSTEAD}"
        )
    frames, matrices = start + clip_offsets(episode.fps, config), episode.cameras[camera]
    try:
        poses = pose_columns(robot_actions, episode.action_names)
        views = clip_projections(matrices, frames[1:], (config.height, config.width), config.aspect)
        return PoseTrack(poses, views, start_track(episode, matrices, frames, config))
    except ValueError as error:
        raise ValueError(f"{episode.source}: {error}") from error


def start_track(
    episode: Episode, camera: CameraMatrices, frames: Int[np.ndarray, " t"], config: ClipConfig
) -> PoseTrack:
    """The `start` of the track of a clip of these recorded frames.

    An episode starts with its first command.
    """
    first, step = int(frames[0]), int(frames[1] - frames[0]) if len(frames) > 1 else 1
    before = episode.robot_actions[[max(first - 1 - step, 0), max(first - 1, 0)]]
    view = clip_projections(camera, [first], (config.height, config.width), config.aspect)
    return PoseTrack(pose_columns(before, episode.action_names), view.expand(2, 3, 4))


def settled_track(track: PoseTrack, lag: float) -> PoseTrack:
    """Where the hands are when the frames are taken, if arms are behind their command.

    `lag` is the share of the last motion that is still to be made. 0 takes commands as they are.
    """
    if not lag:
        return track
    start = track.known_start()
    before = torch.cat([start.poses[..., 1:, :], track.poses[..., :-1, :]], -2)
    first = _behind(start.poses[..., 1:, :], start.poses[..., :1, :], lag)
    start = PoseTrack(torch.cat([start.poses[..., :1, :], first], -2), start.projections)
    return PoseTrack(_behind(track.poses, before, lag), track.projections, start)


def _behind(
    poses: Float[Tensor, "*b n 16"], before: Float[Tensor, "*b n 16"], lag: float
) -> Float[Tensor, "*b n 16"]:
    hands, earlier = (x.unflatten(-1, (len(ARMS), len(ARM_COLUMNS))) for x in (poses, before))
    turn, earlier_turn = hands[..., 3:7], earlier[..., 3:7]
    # q and -q are the same turn: the nearer one is taken.
    sign = torch.where((turn * earlier_turn).sum(-1, keepdim=True) < 0, -1.0, 1.0)
    earlier = torch.cat([earlier[..., :3], sign * earlier_turn, earlier[..., 7:]], -1)
    return (hands + lag * (earlier - hands)).flatten(-2)


def stack_tracks(tracks: Sequence[PoseTrack]) -> PoseTrack:
    """The tracks of several clips as one of a batch."""
    starts = [track.start for track in tracks if track.start is not None]
    return PoseTrack(
        torch.stack([track.poses for track in tracks]),
        torch.stack([track.projections for track in tracks]),
        stack_tracks(starts) if len(starts) == len(tracks) else None,
    )


def pose_columns(
    robot_actions: Float[np.ndarray, "*n a"] | Float[Tensor, "*n a"], names: Sequence[str]
) -> Float[Tensor, "*n 16"]:
    """The poses of both arms among raw actions; of an arm that is not there, zeros, which are no rotation."""
    actions = torch.as_tensor(robot_actions).float()
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


def clip_projections(
    camera: CameraMatrices,
    frames: Sequence[int] | Int[np.ndarray, " n"],
    size: tuple[int, int],
    aspect: Aspect = "stretch",
) -> Float[Tensor, "n 3 4"]:
    """From the world into a clip's picture, at these frames of the recording.

    Args:
        camera: static, or one matrix for every frame of the recording.
        frames: numbers in the recording.
        size: (height, width) of the clip's pictures.
        aspect: how they were made from the recorded ones.
    """
    intrinsics, extrinsics = (
        _at_frames(np.asarray(matrix, np.float64), frames)
        for matrix in (camera.intrinsics, camera.extrinsics)
    )
    top, left, height, width = (0, 0, *camera.size)
    if aspect == "crop":
        top, left, height, width = crop_box(*camera.size, size[0] / size[1])
    picture = np.array([[1 / width, 0, -left / width], [0, 1 / height, -top / height], [0, 0, 1]])
    return torch.from_numpy((picture @ intrinsics @ extrinsics).astype(np.float32))


def _at_frames(matrix: np.ndarray, frames: Sequence[int] | np.ndarray) -> np.ndarray:
    if matrix.ndim == 2:
        return np.broadcast_to(matrix, (len(frames), *matrix.shape))
    if len(frames) and max(frames) >= len(matrix):
        raise ValueError(
            f"a moving camera needs matrices of frame {max(frames)}, got those of {len(matrix)} frames"
        )
    return matrix[np.asarray(frames, int)]


def hand_points(track: PoseTrack) -> Float[Tensor, "*b n p 4"]:
    """(u, v, inverse depth, weight) of HAND_POINTS of the left hand, then of the right one.

    The weight is 1 before the camera and 0 behind it; the last point of a hand lies at the tool and weighs
    what the hand is open. Differentiable in the poses.
    """
    position, quaternion, opening = track.poses.unflatten(-1, (2, len(ARM_COLUMNS))).split((3, 4, 1), -1)
    norm = quaternion.norm(dim=-1, keepdim=True)
    axes = _axes(quaternion / norm.clamp_min(1e-6))
    world = position[..., None, :] + _local_points(opening) @ axes
    turned = torch.einsum("...nij,...nahj->...nahi", track.projections[..., :3], world)
    seen = turned + track.projections[..., None, None, :, 3]
    depth = seen[..., 2:]
    is_seen = (depth > NEAREST) & (norm[..., None, :] > 1e-3)
    safe = torch.where(is_seen, depth, torch.ones_like(depth))
    place = (seen[..., :2] / safe).clamp(-FARTHEST_OUT, FARTHEST_OUT)
    weight = torch.cat([torch.ones_like(depth[..., 1:, :]), opening[..., None, :]], -2) * is_seen
    return torch.cat([place, UNIT_DEPTH / safe * is_seen, weight], -1).flatten(-3, -2)


def carried_places(now: PoseTrack, then: PoseTrack, size: tuple[int, int]) -> Float[Tensor, "n arm H W uv"]:
    """Where each pixel was in an earlier frame, had it moved rigidly with a hand, for each arm.

    What is carried is taken to lie in the plane through the tool that faces the camera. Places are in [-1, 1]
    across the earlier picture, as `grid_sample` takes them.

    Args:
        now: a row for each picture.
        then: the same of the earlier pictures.
        size: (height, width) of the pictures.
    """
    axes, tool = hand_frames(now.poses)
    axes_then, tool_then = hand_frames(then.poses)
    lens, shift = now.projections[..., :3], now.projections[..., 3]
    depth = torch.einsum("nj,naj->na", lens[:, 2], tool) + shift[:, 2:]
    rays = depth[:, :, None, None] * pixel_rays(*size).to(depth) - shift[:, None, None]
    world = torch.einsum("nij,napj->napi", torch.linalg.inv(lens), rays)
    local = torch.einsum("naij,napj->napi", axes, world - tool[:, :, None])
    moved = torch.einsum("naji,napj->napi", axes_then, local) + tool_then[:, :, None]
    seen = torch.einsum("nij,napj->napi", then.projections[..., :3], moved)
    seen = seen + then.projections[:, None, None, :, 3]
    place = seen[..., :2] / seen[..., 2:].clamp_min(NEAREST)
    return (2 * place - 1).clamp(-FARTHEST_OUT, FARTHEST_OUT).unflatten(2, size)


def pixel_rays(height: int, width: int) -> Float[Tensor, "p 3"]:
    """(u, v, 1) of the center of every pixel, row by row."""
    v, u = torch.meshgrid(
        (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij"
    )
    return torch.stack([u, v, torch.ones_like(u)], -1).flatten(0, 1)


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
