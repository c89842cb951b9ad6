"""Camera positions, and the matrices that RoboTwin files store with each picture.

World: x to the robot's right, y away from the robot, z up; metres. A pose has OpenCV axes (x right, y down, z
forward); OpenGL axes (x right, y up, z backward) appear only in the stored `cam2world_gl`.
"""

from dataclasses import dataclass, replace

import mujoco
import numpy as np
from jaxtyping import Float32, Float64

Vector = tuple[float, float, float]


@dataclass(frozen=True)
class Camera:
    """A pinhole camera, fixed in the world or attached to a site of the scene."""

    name: str  # the group under /observation in the files
    position: Vector  # m, in the world or in the frame of the site
    forward: Vector  # viewing direction, any length
    left: Vector  # image left; only its component orthogonal to `forward` counts
    fovy: float = 37.0  # vertical field of view, degrees; kept for every aspect ratio
    site: str = ""  # name of the site it is attached to; empty for a static camera

    def __post_init__(self) -> None:
        if not 0 < self.fovy < 180:
            raise ValueError(f"camera {self.name}: fovy must be between 0 and 180 degrees, got {self.fovy}")
        if np.linalg.norm(np.cross(self.forward, self.left)) < 1e-9:
            raise ValueError(f"camera {self.name}: forward and left are parallel or zero")


@dataclass(frozen=True)
class CameraPose:
    """A camera at one instant."""

    position: Float64[np.ndarray, "3"]  # m, world
    rotation: Float64[np.ndarray, "3 3"]  # camera to world; columns are image right, image down, forward


# RoboTwin's D435s on the aloha-agilex: head above the robot, front low and to the side, one on each wrist.
HEAD = Camera("head_camera", (-0.032, -0.45, 1.35), (0.0, 0.6, -0.8), (-1.0, 0.0, 0.0))
FRONT = Camera("front_camera", (0.20, -0.45, 0.85), (0.0, 1.0, -0.1), (-1.0, 0.0, 0.0))
LEFT_WRIST, RIGHT_WRIST = (
    Camera(name, (0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), site=name)
    for name in ("left_camera", "right_camera")
)
# For small square pictures: across the table and facing the robot, so that no arm hides its own gripper, and
# 64 pixels span just the workspace. Image right is the robot's left, as for a person facing it.
DESK = Camera("desk_camera", (0.0, 0.36, 1.45), (0.0, -0.48, -0.65), (1.0, 0.0, 0.0), fovy=38.0)

CAMERAS = {"desk": DESK, "head": HEAD, "front": FRONT, "left_wrist": LEFT_WRIST, "right_wrist": RIGHT_WRIST}


def camera_pose(camera: Camera, model: mujoco.MjModel, data: mujoco.MjData) -> CameraPose:
    """The world pose of a camera in the current state of the simulation."""
    local = _local_pose(camera)
    if not camera.site:
        return local
    site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, camera.site)
    if site < 0:
        raise ValueError(f"camera {camera.name}: the scene has no site {camera.site!r}")
    rotation = data.site_xmat[site].reshape(3, 3)
    return CameraPose(data.site_xpos[site] + rotation @ local.position, rotation @ local.rotation)


def _local_pose(camera: Camera) -> CameraPose:
    forward = np.asarray(camera.forward, np.float64) / np.linalg.norm(camera.forward)
    down = np.cross(camera.left, forward)
    down /= np.linalg.norm(down)
    rotation = np.stack([np.cross(down, forward), down, forward], axis=1)
    return CameraPose(np.asarray(camera.position, np.float64), rotation)


def focal_length(fovy: float, height: int) -> float:
    """Focal length in pixels; the same along both image axes."""
    return 0.5 * height / float(np.tan(np.radians(fovy) / 2))


def intrinsic_cv(fovy: float, width: int, height: int) -> Float32[np.ndarray, "3 3"]:
    """K of a camera whose principal point is the image center."""
    focal = focal_length(fovy, height)
    return np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], np.float32)


def extrinsic_cv(pose: CameraPose) -> Float32[np.ndarray, "3 4"]:
    """World to camera matrix, OpenCV axes."""
    return np.column_stack([pose.rotation.T, -pose.rotation.T @ pose.position]).astype(np.float32)


def cam2world_gl(pose: CameraPose) -> Float32[np.ndarray, "4 4"]:
    """Camera to world matrix, OpenGL axes."""
    matrix = np.eye(4, dtype=np.float32)
    matrix[:3, :3] = pose.rotation * np.array([1.0, -1.0, -1.0])
    matrix[:3, 3] = pose.position
    return matrix


def jittered(
    camera: Camera, rng: np.random.Generator, *, metres: float = 0.01, degrees: float = 1.0
) -> Camera:
    """Perturb a camera: normal noise on its position (at most 3 sigma), rotation about a random axis."""
    pose = _local_pose(camera)
    axis_angle = rng.normal(0.0, np.radians(degrees), 3)
    angle = float(np.linalg.norm(axis_angle))
    quaternion, turn = np.empty(4), np.empty(9)
    mujoco.mju_axisAngle2Quat(quaternion, axis_angle / max(angle, 1e-12), angle)
    mujoco.mju_quat2Mat(turn, quaternion)
    rotation = turn.reshape(3, 3) @ pose.rotation
    position = pose.position + np.clip(rng.normal(0.0, metres, 3), -3 * metres, 3 * metres)
    return replace(
        camera, position=_vector(position), forward=_vector(rotation[:, 2]), left=_vector(-rotation[:, 0])
    )


def _vector(values: np.ndarray) -> Vector:
    x, y, z = (float(value) for value in values)
    return x, y, z
