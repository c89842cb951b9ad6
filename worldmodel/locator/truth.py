"""Exact image positions of grippers and the manipulated object, computed from recorded poses.

RoboTwin files hold the wrist pose of both arms (its local x is the approach direction) and the matrices of
every camera. The object's path is not in the files; a tabletop episode is simulated again from its seed.
Pixel coordinates are continuous: the image spans [0, width] x [0, height], a pixel's center is at + 0.5.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from robotwin_adapters.robotwin.dataset import RobotwinDataset
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS, TCP_OFFSET
from worldmodel.data.cameras import find_camera
from worldmodel.data.clips import resize_frames
from worldmodel.types import CameraMatrices, evenly_spread

POINTS = ("left gripper", "right gripper", "object")
POSE_DIM = 7  # x y z, quaternion w x y z
RIGHT_ARM = 8  # first column of the right arm: the left one has a pose and a gripper


@dataclass(frozen=True)
class LabeledFrames:
    """Frames of one episode with the image positions of its points."""

    embodiment: str
    frames: UInt8[np.ndarray, "t 3 H W"]
    points: Float[np.ndarray, "t 3 2"]  # x, y in pixels; POINTS in order
    is_known: Bool[np.ndarray, "t 3"]  # whether the point has ground truth at all
    is_visible: Bool[np.ndarray, "t 3"]  # in front of the camera and inside the image


def project(
    points: Float[np.ndarray, "t 3"],
    intrinsic_cv: Float[np.ndarray, "... 3 3"],
    extrinsic_cv: Float[np.ndarray, "... 3 4"],
) -> tuple[Float[np.ndarray, "t 2"], Float[np.ndarray, " t"]]:
    """Pixels and depth (m; negative if the camera faces away) of world points, one per frame."""
    camera = np.einsum("...ij,...j->...i", extrinsic_cv[..., :3], points) + extrinsic_cv[..., 3]
    image = np.einsum("...ij,...j->...i", intrinsic_cv, camera)
    depth = camera[:, 2]
    safe = np.where(np.abs(depth) < 1e-9, 1e-9, depth)
    return image[:, :2] / safe[:, None], depth


def in_picture(
    points: Float[np.ndarray, "t 3"],
    matrices: CameraMatrices,
    size: tuple[int, int],
) -> tuple[Float[np.ndarray, "t 2"], Bool[np.ndarray, " t"]]:
    """Pixels of world points in images stretched to `size` (height, width), and whether they are inside."""
    found, depth = project(points, matrices.intrinsics, matrices.extrinsics)
    pixels = found * np.array([size[1] / matrices.size[1], size[0] / matrices.size[0]])
    return pixels, (pixels >= 0).all(1) & (pixels < [size[1], size[0]]).all(1) & (depth > 0)


def tool_centers(poses: Float[np.ndarray, "t 7"]) -> Float[np.ndarray, "t 3"]:
    """Fingertip centers of wrist poses: TCP_OFFSET along the local x axis."""
    w, x, y, z = (poses[:, 3:] / np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)).T
    approach = np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], 1)
    return poses[:, :3] + TCP_OFFSET * approach


def label_episode(
    dataset: RobotwinDataset, index: int, camera: str, size: tuple[int, int], count: int
) -> LabeledFrames:
    """At most `count` evenly spaced frames, resized to (height, width), with labeled points.

    `dataset` must have been opened with action_space="measured_poses".
    """
    episode = dataset[index]
    if camera not in episode.cameras:
        raise ValueError(f"{episode.source}: no matrices of camera {camera!r}, got {sorted(episode.cameras)}")
    poses, reader = episode.robot_states, find_camera(episode, camera)
    assert poses is not None
    assert episode.action_space == "measured_poses", episode.action_space
    rows = evenly_spread(len(poses), count)
    places = np.full((len(poses), len(POINTS), 3), np.nan)
    places[:, 0] = tool_centers(poses[:, :POSE_DIM].astype(np.float64))
    places[:, 1] = tool_centers(poses[:, RIGHT_ARM : RIGHT_ARM + POSE_DIM].astype(np.float64))
    path = object_path(episode.source)
    if path is not None and len(path) == len(poses):
        places[:, 2] = path
    pixels, is_visible = np.zeros((len(poses), len(POINTS), 2)), np.zeros((len(poses), len(POINTS)), bool)
    for point in range(len(POINTS)):
        pixels[:, point], is_visible[:, point] = in_picture(
            np.nan_to_num(places[:, point]), episode.cameras[camera], size
        )
    is_known = ~np.isnan(places).any(2)
    return LabeledFrames(
        embodiment=episode.embodiment,
        frames=resize_frames(reader.read(rows), *size).numpy(),
        points=pixels[rows],
        is_known=is_known[rows],
        is_visible=(is_visible & is_known)[rows],
    )


def object_in_frames(
    episode_file: str, camera: str, frames: Sequence[int], size: tuple[int, int]
) -> tuple[Float[np.ndarray, "n 2"], Bool[np.ndarray, " n"]] | None:
    """Pixels of object A in these recorded frames, and whether it is inside; None if its path is unknown."""
    try:
        path = object_path(episode_file)
    except ImportError:  # tabletop data on a machine without the simulator
        return None
    if path is None:
        return None
    episode = RobotwinDataset(episode_file, cameras=(camera,))[0]
    if len(path) != episode.num_frames:
        return None
    pixels, is_visible = in_picture(path, episode.cameras[camera], size)
    return pixels[list(frames)], is_visible[list(frames)]


def object_path(episode_file: str) -> Float[np.ndarray, "t 3"] | None:
    """World positions of object A at every frame of a tabletop episode; None for other data.

    Episodes with randomized appearance are excluded: their clutter is drawn from another random stream.
    """
    entry = _scene_entry(Path(episode_file))
    texture = entry.get("texture_info", {}).get("table_texture")
    if entry.get("embodiment") not in EMBODIMENTS or "seed" not in entry or texture is not None:
        return None
    return _simulated_path(entry["task"], entry["embodiment"], entry["seed"])


def _scene_entry(path: Path) -> dict[str, Any]:
    info = path.parent.parent / "scene_info.json"
    if not info.is_file():
        return {}
    number = path.stem.removeprefix("episode").removeprefix("_")
    return json.loads(info.read_text()).get(f"episode_{number}", {})


@lru_cache(maxsize=16)
def _simulated_path(task: str, embodiment: str, seed: int) -> Float[np.ndarray, "t 3"]:
    from robotwin_adapters.tabletop.simulate import run_episode  # MuJoCo is an extra

    path: list[np.ndarray] = []
    run_episode(
        task,
        EMBODIMENTS[embodiment],
        seed,
        lambda scene, _: path.append(scene.data.xpos[scene.body_a].copy()),
    )
    return np.array(path)
