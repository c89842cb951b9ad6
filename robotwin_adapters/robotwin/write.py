"""Writes RoboTwin 2.0 legacy episodes (format A), so that tools for RoboTwin can read ours."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from robotwin_adapters.actions import ArmParts, check_joints, join_arms, layout_from_names, split_arms
from robotwin_adapters.robotwin.checksum import (
    FRAMES_ATTRIBUTE,
    NUMBERS_ATTRIBUTE,
    frame_checksums,
    numbers_digest,
)
from robotwin_adapters.robotwin.jpeg import encode_swapped
from robotwin_adapters.robotwin.recording import COMMANDED_GROUP
from worldmodel.data.action_spaces import describe_action_space
from worldmodel.files import atomic_file, write_text
from worldmodel.types import Episode

MAX_FRAMES = 15_000  # the CRCs of one camera are an HDF5 attribute, which is limited to 64 KiB
MATRIX_SHAPES = {"intrinsic_cv": (3, 3), "extrinsic_cv": (3, 4), "cam2world_gl": (4, 4)}


@dataclass(frozen=True)
class CameraRecord:
    """The frames and matrices of one camera; unknown matrices are omitted from the file."""

    rgb: UInt8[ndarray, "t H W 3"]  # true RGB; the file gets the swapped colors of the format
    intrinsic_cv: Float[ndarray, "t 3 3"] | None = None  # pixels
    extrinsic_cv: Float[ndarray, "t 3 4"] | None = None  # world to camera, OpenCV axes, metres
    cam2world_gl: Float[ndarray, "t 4 4"] | None = None  # camera to world, OpenGL axes, metres


@dataclass(frozen=True)
class RobotwinEpisode:
    """T frames of a two-armed robot: the commanded joints at each frame, and the camera frames."""

    left_arm: Float[ndarray, "t left"]  # drive targets, rad
    left_gripper: Float[ndarray, " t"]  # commanded opening, 0 closed .. 1 open
    right_arm: Float[ndarray, "t right"]  # rad
    right_gripper: Float[ndarray, " t"]
    cameras: Mapping[str, CameraRecord]
    left_endpose: Float[ndarray, "t 7"] | None = None  # measured x y z (m, world), quaternion w x y z
    right_endpose: Float[ndarray, "t 7"] | None = None
    left_commanded_endpose: Float[ndarray, "t 7"] | None = None  # poses of the drive targets
    right_commanded_endpose: Float[ndarray, "t 7"] | None = None

    def __post_init__(self) -> None:
        count = len(self.left_gripper)
        if not 2 <= count <= MAX_FRAMES:
            raise ValueError(f"an episode has 2 to {MAX_FRAMES} frames, got {count}")
        if not self.cameras:
            raise ValueError("an episode needs at least one camera")
        for name, values, shape in _expected_shapes(self):
            if values.shape != (count, *shape):
                raise ValueError(f"{name}: expected shape {(count, *shape)}, got {values.shape}")
            if not np.isfinite(values).all():
                raise ValueError(f"{name}: holds values that are not finite")
        check_joints(self.arms)
        for name, camera in self.cameras.items():
            rgb = camera.rgb
            if rgb.dtype != np.uint8 or rgb.ndim != 4 or (len(rgb), rgb.shape[3]) != (count, 3):
                raise ValueError(f"{name}: expected uint8 ({count}, H, W, 3), got {rgb.dtype} {rgb.shape}")

    @property
    def arms(self) -> ArmParts:
        """The joint columns."""
        return ArmParts(self.left_arm, self.left_gripper, self.right_arm, self.right_gripper)


def write_robotwin_episode(folder: Path, index: int, episode: RobotwinEpisode) -> Path:
    """Write `folder/data/episode<index>.hdf5` atomically."""
    path = folder / "data" / f"episode{index}.hdf5"
    with atomic_file(path) as temporary:
        _write_hdf5(temporary, episode)
    return path


def write_robotwin_index(
    folder: Path,
    *,
    seeds: Sequence[int],
    scene_info: Sequence[Mapping[str, object]],
    instructions: Sequence[Mapping[str, Sequence[str]]],
) -> None:
    """Write seed.txt, scene_info.json and instructions/; entry N of each belongs to episode N.

    An instruction entry is {"seen": [...], "unseen": [...]}.
    """
    if not len(seeds) == len(scene_info) == len(instructions):
        raise ValueError(
            "expected one seed, scene and instruction entry per episode, got "
            f"{len(seeds)}, {len(scene_info)} and {len(instructions)}"
        )
    for index, texts in enumerate(instructions):
        write_text(folder / "instructions" / f"episode{index}.json", json.dumps(texts, indent=2))
    scenes = {f"episode_{index}": info for index, info in enumerate(scene_info)}
    write_text(folder / "scene_info.json", json.dumps(scenes, indent=2))
    write_text(folder / "seed.txt", "".join(f"{seed} " for seed in seeds))


def robotwin_episode_from(episode: Episode) -> RobotwinEpisode:
    """Convert an episode whose columns are [left joints, gripper, right joints, gripper]."""
    try:
        if episode.action_space not in ("", "joint_commands"):
            raise ValueError(f"expected joint commands, got {describe_action_space(episode.action_space)}")
        layout = layout_from_names(episode.action_names)
        if episode.robot_states is None or episode.robot_states.shape[1] != layout.width:
            raise ValueError(f"the first row needs robot states of {layout.width} columns")
        vector = np.concatenate([episode.robot_states[:1], episode.robot_actions])
        parts = split_arms(vector, layout)
        every = range(episode.num_frames)
        cameras = {
            name: CameraRecord(reader.read(every), *_matrices(episode, name))
            for name, reader in episode.frames.items()
        }
        return RobotwinEpisode(
            parts.left_arm, parts.left_gripper, parts.right_arm, parts.right_gripper, cameras
        )
    except ValueError as error:
        raise ValueError(f"{episode.source}: cannot become a RoboTwin episode: {error}") from error


def _matrices(episode: Episode, camera: str) -> tuple[ndarray, ndarray] | tuple[()]:
    """Intrinsics and extrinsics at every frame, if the episode has them."""
    if camera not in episode.cameras:
        return ()
    known, count = episode.cameras[camera], episode.num_frames
    return (
        np.broadcast_to(known.intrinsics, (count, 3, 3)),
        np.broadcast_to(known.extrinsics, (count, 3, 4)),
    )


def _expected_shapes(episode: RobotwinEpisode) -> list[tuple[str, ndarray, tuple[int, ...]]]:
    arms = [
        ("left_arm", episode.left_arm, episode.left_arm.shape[1:2]),
        ("left_gripper", episode.left_gripper, ()),
        ("right_arm", episode.right_arm, episode.right_arm.shape[1:2]),
        ("right_gripper", episode.right_gripper, ()),
    ]
    poses = [
        (name, getattr(episode, name), (7,))
        for kind in ("endpose", "commanded_endpose")
        for name in (f"left_{kind}", f"right_{kind}")
    ]
    matrices = [
        (f"{name}/{key}", getattr(camera, key), shape)
        for name, camera in episode.cameras.items()
        for key, shape in MATRIX_SHAPES.items()
    ]
    return [*arms, *((name, values, shape) for name, values, shape in poses + matrices if values is not None)]


def _write_hdf5(path: Path, episode: RobotwinEpisode) -> None:
    arms = episode.arms
    with h5py.File(path, "w") as file:
        joints = file.create_group("joint_action")
        for field in fields(arms):
            joints[field.name] = getattr(arms, field.name).astype(np.float64)
        joints["vector"] = join_arms(arms).astype(np.float64)
        poses = file.create_group("endpose")
        for side in ("left", "right"):
            if (pose := getattr(episode, f"{side}_endpose")) is not None:
                poses[f"{side}_endpose"] = pose.astype(np.float64)
                poses[f"{side}_gripper"] = joints[f"{side}_gripper"][()]
        for side in ("left", "right"):
            if (pose := getattr(episode, f"{side}_commanded_endpose")) is not None:
                file[f"{COMMANDED_GROUP}/{side}_endpose"] = pose.astype(np.float64)
        for name, camera in episode.cameras.items():
            _write_camera(file.create_group(f"observation/{name}"), camera)
        file["pointcloud"] = np.zeros((len(arms.left_gripper), 0))
        file.attrs[NUMBERS_ATTRIBUTE] = np.bytes_(numbers_digest(file))


def _write_camera(group: h5py.Group, camera: CameraRecord) -> None:
    buffers = [encode_swapped(frame) for frame in camera.rgb]
    group["rgb"] = np.array(buffers, f"S{max(map(len, buffers))}")
    group["rgb"].attrs[FRAMES_ATTRIBUTE] = frame_checksums(buffers)
    for key in MATRIX_SHAPES:
        if (matrix := getattr(camera, key)) is not None:
            group[key] = matrix.astype(np.float32)
