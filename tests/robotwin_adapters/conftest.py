"""RoboTwin files as others write them: plain h5py, OpenCV and pickle, nothing of our own code."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

MARK = b"\xff\xfe\x00\x0aXPL-RGB1"


def draw_frames(count: int, height: int = 48, width: int = 64) -> np.ndarray:
    """True RGB: a smooth background, red on the left and blue on the right, and a green box that moves."""
    x = np.linspace(0, 1, width)
    frames = np.empty((count, height, width, 3), np.uint8)
    frames[..., 0] = 230 - 180 * x
    frames[..., 1] = np.linspace(20, 90, height)[:, None]
    frames[..., 2] = 30 + 200 * x
    for i, frame in enumerate(frames):
        frame[8:24, 4 * i : 4 * i + 16] = (20, 220, 40)
    return frames


def draw_joints(count: int, left: int = 6, right: int = 6) -> dict[str, np.ndarray]:
    """Commands with every row different from its neighbors."""
    rng = np.random.default_rng(5)
    steps = rng.normal(0, 0.05, (count, left + right)).cumsum(0)
    return {
        "left_arm": steps[:, :left],
        "left_gripper": np.linspace(1, 0, count),
        "right_arm": steps[:, left:],
        "right_gripper": np.linspace(0.2, 0.9, count),
    }


def draw_poses(count: int) -> np.ndarray:
    rng = np.random.default_rng(6)
    quaternions = rng.normal(0, 0.1, (count, 4)) + np.eye(4)[0]
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    return np.concatenate([rng.normal(0, 0.3, (count, 3)), quaternions], axis=1)


def encode(frame: np.ndarray, standard: bool) -> bytes:
    """RoboTwin's way (RGB handed to an encoder that wants BGR), or a standard JPEG with the mark."""
    if not standard:
        return cv2.imencode(".jpg", frame)[1].tobytes()
    jpeg = cv2.imencode(".jpg", frame[..., ::-1])[1].tobytes()
    end = 4 + int.from_bytes(jpeg[4:6])
    return jpeg[:end] + MARK + jpeg[end:]


def vector_of(joints: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([values.reshape(len(values), -1) for values in joints.values()], axis=1)


def write_legacy(
    path: Path,
    *,
    count: int = 8,
    left: int = 6,
    right: int = 6,
    cameras: tuple[str, ...] = ("head_camera", "left_camera"),
    poses: bool = True,
    standard: Callable[[int], bool] = lambda i: False,
    frames: np.ndarray | None = None,
    joints: dict[str, np.ndarray] | None = None,
) -> None:
    """Format A."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = draw_frames(count) if frames is None else frames
    joints = draw_joints(count, left, right) if joints is None else joints
    with h5py.File(path, "w") as f:
        for name, values in joints.items():
            f["joint_action/" + name] = values
        f["joint_action/vector"] = vector_of(joints)
        f.create_group("endpose")
        if poses:
            for side in ("left", "right"):
                f[f"endpose/{side}_endpose"] = draw_poses(count)
                f[f"endpose/{side}_gripper"] = joints[f"{side}_gripper"]
        for camera in cameras:
            jpegs = [encode(frame, standard(i)) for i, frame in enumerate(frames)]
            f[f"observation/{camera}/rgb"] = np.array(jpegs, dtype=f"S{max(map(len, jpegs))}")
            f[f"observation/{camera}/intrinsic_cv"] = np.tile(np.eye(3, dtype=np.float32), (count, 1, 1))
            f[f"observation/{camera}/extrinsic_cv"] = np.tile(np.eye(4, dtype=np.float32)[:3], (count, 1, 1))
            f[f"observation/{camera}/cam2world_gl"] = np.tile(np.eye(4, dtype=np.float32), (count, 1, 1))
        f["pointcloud"] = np.zeros((count, 0))


def write_xpolicylab(
    path: Path,
    *,
    count: int = 8,
    extrinsics: str = "extrinsics_matrix",
    converted: bool = False,
    standard: Callable[[int], bool] = lambda i: False,
    head_pose: np.ndarray | None = None,
) -> None:
    """Format B from `count` raw frames: count - 1 rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    joints, poses, frames = draw_joints(count), draw_poses(count), draw_frames(count)
    head_pose = np.eye(4) if head_pose is None else head_pose
    with h5py.File(path, "w") as f:
        f.attrs["source_format"] = "RoboTwin"
        f["data_format_version"] = "v1.0"
        f["instructions"] = json.dumps(["put it left", "move it left"])
        f["additional_info/frequency"] = np.int32(15)
        for root, rows in (("state", slice(None, -1)), ("action", slice(1, None))):
            for side in ("left", "right"):
                f[f"{root}/{side}_arm_joint_states"] = joints[f"{side}_arm"][rows].astype(np.float32)
                f[f"{root}/{side}_ee_joint_states"] = joints[f"{side}_gripper"][rows, None].astype(np.float32)
                f[f"{root}/{side}_ee_poses"] = poses[rows].astype(np.float32)
            if converted:
                f[f"{root}/joint_states"] = vector_of(joints)[rows].astype(np.float32)
        for camera in ("cam_head", "cam_left_wrist"):
            jpegs = [encode(frame, standard(i)) for i, frame in enumerate(frames[:-1])]
            f[f"vision/{camera}/colors"] = np.array(jpegs, dtype=f"S{max(map(len, jpegs))}")
            f[f"vision/{camera}/shape"] = np.array(frames.shape[1:], np.int32)
            f[f"vision/{camera}/intrinsic_matrix"] = np.tile(np.eye(3, dtype=np.float32), (count - 1, 1, 1))
            f[f"vision/{camera}/{extrinsics}"] = np.tile(head_pose.astype(np.float32), (count - 1, 1, 1))


def write_v1(folder: Path, *, count: int = 5, protocol: int = 4) -> None:
    """Format C: one pickle per frame, grippers in metres."""
    folder.mkdir(parents=True, exist_ok=True)
    vector, frames = vector_of(draw_joints(count)), draw_frames(count)
    vector[:, [6, 13]] *= 0.045
    for i in range(count):
        camera = {"rgb": frames[i], "depth": np.ones(frames[i].shape[:2]), "intrinsic_cv": np.eye(3)}
        frame = {
            "observation": {"head_camera": camera, "front_camera": camera},
            "pointcloud": np.zeros((16, 6)),
            "joint_action": vector[i],
            "endpose": np.zeros(14),
        }
        (folder / f"{i}.pkl").write_bytes(pickle.dumps(frame, protocol=protocol))


class RobotwinFiles:
    """The functions above, for tests in files that cannot import this one."""

    draw_frames = staticmethod(draw_frames)
    draw_joints = staticmethod(draw_joints)
    draw_poses = staticmethod(draw_poses)
    encode = staticmethod(encode)
    vector_of = staticmethod(vector_of)
    write_legacy = staticmethod(write_legacy)
    write_xpolicylab = staticmethod(write_xpolicylab)
    write_v1 = staticmethod(write_v1)


@pytest.fixture(scope="session")
def robotwin_files() -> type[RobotwinFiles]:
    return RobotwinFiles
