"""RoboTwin 2.0 episodes in HDF5: legacy files (format A) and XPolicyLab v1.0 files (format B).

Format B has dropped the last frame: N = T - 1 rows of state and vision, and action[t] = row t + 1 of the
original. Its last action would lead to the missing frame and is skipped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields

import h5py
import numpy as np
from jaxtyping import Float
from numpy import ndarray

from robotwin_adapters.actions import ArmParts, join_arms
from robotwin_adapters.camera_order import overview_first
from robotwin_adapters.hdf5_tree import (
    attribute_at,
    dataset_at,
    group_at,
    integers_at,
    names_in,
    numbers_at,
    text_at,
)
from robotwin_adapters.robotwin.cameras import read_camera_matrices
from robotwin_adapters.robotwin.checksum import NUMBERS_ATTRIBUTE, numbers_digest
from robotwin_adapters.robotwin.jpeg_frames import JpegFrames, open_jpeg_frames
from robotwin_adapters.robotwin.recording import (
    COMMANDED_GROUP,
    PHYSICAL_FPS,
    PHYSICS_HZ,
    ActionSpace,
    Recording,
    joint_rows,
    pose_rows,
)
from robotwin_adapters.robotwin.side_files import string_list
from robotwin_adapters.storage import MAX_MEMBER_BYTES, FileStore
from worldmodel.types import CameraMatrices

XPOLICYLAB_VERSION = "v1.0"
XPOLICYLAB_CAMERAS = {  # -> the names of format A
    "cam_head": "head_camera",
    "cam_left_wrist": "left_camera",
    "cam_right_wrist": "right_camera",
    "cam_third_view": "front_camera",
}
POSE_DIM = 7
NO_COMMANDED_POSES = (
    "the file holds no commanded poses, only measured ones (action_space=measured_poses) and commanded "
    "joints (action_space=joint_commands)"
)
COMMANDED_NOTE = "joints and grippers are commanded targets, not measured positions"
MEASURED_NOTE = "poses are measured, grippers are commanded"
POSE_COMMAND_NOTE = "poses are those of the commanded joint targets, not measured; grippers are commanded"
ONLY_MEASURED_NOTE = f"{MEASURED_NOTE}; the file holds no commanded poses"


def read_hdf5_episode(
    store: FileStore, name: str, cameras: Sequence[str] | None, action_space: ActionSpace
) -> Recording:
    """Read the episode, detecting which of the two formats the file has."""
    with store.open_hdf5(name) as file:
        _verify_checksum(file)
        if "joint_action" in file and "observation" in file:
            return _read_legacy(store, name, file, cameras, action_space)
        if "state" in file and "action" in file and "vision" in file:
            return _read_xpolicylab(store, name, file, cameras, action_space)
        raise ValueError(
            "expected a RoboTwin episode (joint_action and observation, or state, action and vision), "
            f"got {sorted(names_in(file))}"
        )


def camera_paths(file: h5py.File) -> dict[str, str]:
    """Camera name -> its group in the file, for both formats."""
    if "observation" in file:
        return {name: f"observation/{name}" for name in names_in(group_at(file, "observation"))}
    names = names_in(group_at(file, "vision"))
    return {XPOLICYLAB_CAMERAS.get(name, name): f"vision/{name}" for name in names}


def _verify_checksum(file: h5py.File) -> None:
    expected = attribute_at(file, NUMBERS_ATTRIBUTE, np.dtype("S64"), ())
    if expected is not None and expected[()] != numbers_digest(file).encode():
        raise ValueError("the numbers do not match the checksum they were written with")


def _read_legacy(
    store: FileStore, name: str, file: h5py.File, cameras: Sequence[str] | None, action_space: ActionSpace
) -> Recording:
    joints = _parts(file, "joint_action/{side}_arm", "joint_action/{side}_gripper")
    vector = numbers_at(file, "joint_action/vector", (None, joints.layout.width))
    if not np.array_equal(vector, join_arms(joints)):
        raise ValueError("joint_action/vector is not the concatenation of the arms and grippers beside it")
    rows, names, note = *joint_rows(joints), COMMANDED_NOTE
    if action_space != "joint_commands":
        rows, names, note = *pose_rows(_legacy_poses(file, action_space)), POSE_COMMAND_NOTE
    if action_space == "measured_poses":
        note = MEASURED_NOTE if COMMANDED_GROUP in file else ONLY_MEASURED_NOTE
    states = rows.astype(np.float32)
    readers = _open_cameras(store, name, file, cameras, "rgb")
    return Recording(
        states=states,
        actions=states[1:],
        names=names,
        layout=joints.layout,
        action_space=action_space,
        frames=readers,
        notes=(note,),
        cameras=_camera_matrices(file, readers),
    )


def _legacy_poses(file: h5py.File, action_space: ActionSpace) -> ArmParts:
    """Measured poses, or the poses of the joint targets, with the commanded grippers."""
    if action_space == "measured_poses":
        return _parts(file, "endpose/{side}_endpose", "endpose/{side}_gripper", arm_dim=POSE_DIM)
    if COMMANDED_GROUP not in file:
        raise ValueError(NO_COMMANDED_POSES)
    poses = f"{COMMANDED_GROUP}/{{side}}_endpose"
    return _parts(file, poses, "joint_action/{side}_gripper", arm_dim=POSE_DIM)


def _read_xpolicylab(
    store: FileStore, name: str, file: h5py.File, cameras: Sequence[str] | None, action_space: ActionSpace
) -> Recording:
    data = store.read(name, MAX_MEMBER_BYTES)
    if (version := text_at(file, "data_format_version", data)) != XPOLICYLAB_VERSION:
        raise ValueError(f"expected data_format_version {XPOLICYLAB_VERSION}, got {version!r}")
    state, action = (_xpolicylab_joints(file, root) for root in ("state", "action"))
    layout, make_rows, note = state.layout, joint_rows, COMMANDED_NOTE
    if action_space == "pose_commands":
        raise ValueError(NO_COMMANDED_POSES)
    if action_space == "measured_poses":
        arm, gripper = "{side}_ee_poses", "{side}_ee_joint_states"
        state = _parts(file, f"state/{arm}", f"state/{gripper}", arm_dim=POSE_DIM)
        action = _parts(file, f"action/{arm}", f"action/{gripper}", arm_dim=POSE_DIM)
        make_rows, note = pose_rows, ONLY_MEASURED_NOTE
    states, names = make_rows(state)
    # Row 0 goes first so that quaternion signs continue from the first state.
    actions = make_rows(_lead(state, action))[0][1:]
    _check_next_state(states, actions)
    fps, fps_note = _xpolicylab_fps(file)
    readers = _open_cameras(store, name, file, cameras, "colors")
    return Recording(
        states=states.astype(np.float32),
        actions=actions.astype(np.float32),
        names=names,
        layout=layout,
        action_space=action_space,
        frames=readers,
        fps=fps,
        instructions=_xpolicylab_instructions(file, data),
        notes=(note, *fps_note),
        cameras=_camera_matrices(file, readers),
    )


def _parts(file: h5py.File, arm: str, gripper: str, arm_dim: int | None = None) -> ArmParts:
    left_arm = numbers_at(file, arm.format(side="left"), (None, arm_dim))
    count = len(left_arm)
    right_arm = numbers_at(file, arm.format(side="right"), (count, arm_dim))
    # Format A keeps grippers as (t,), format B as (t, 1).
    shape = (count,) if dataset_at(file, gripper.format(side="left")).ndim == 1 else (count, 1)
    left, right = (numbers_at(file, gripper.format(side=side), shape) for side in ("left", "right"))
    return ArmParts(left_arm, left.reshape(count), right_arm, right.reshape(count))


def _xpolicylab_joints(file: h5py.File, root: str) -> ArmParts:
    parts = _parts(file, f"{root}/{{side}}_arm_joint_states", f"{root}/{{side}}_ee_joint_states")
    if "joint_states" in file[root]:
        joined = numbers_at(file, f"{root}/joint_states", (None, parts.layout.width))
        if not np.array_equal(joined, join_arms(parts)):
            raise ValueError(f"{root}/joint_states is not the concatenation of the arms beside it")
    return parts


def _lead(state: ArmParts, action: ArmParts) -> ArmParts:
    rows = {}
    for field in fields(ArmParts):
        before, after = getattr(state, field.name), getattr(action, field.name)
        if before.shape != after.shape:
            raise ValueError(f"{field.name}: state has shape {before.shape}, action {after.shape}")
        rows[field.name] = np.concatenate([before[:1], after[:-1]])
    return ArmParts(**rows)


def _check_next_state(states: Float[ndarray, "t a"], actions: Float[ndarray, "t-1 a"]) -> None:
    # Stored twice on purpose by the format, so a difference is damage or a file of another kind.
    if not np.array_equal(states[1:], actions):
        wrong = float((states[1:] != actions).mean())
        raise ValueError(
            f"{wrong:.2%} of the actions are not the next state, as they are in RoboTwin's files"
        )


def _xpolicylab_fps(file: h5py.File) -> tuple[float, tuple[str, ...]]:
    if "additional_info" not in file or "frequency" not in file["additional_info"]:
        return PHYSICAL_FPS, ()
    steps = int(integers_at(file, "additional_info/frequency", ()))
    if not 1 <= steps <= PHYSICS_HZ:
        raise ValueError(f"additional_info/frequency: expected 1 to {PHYSICS_HZ} physics steps, got {steps}")
    return PHYSICS_HZ / steps, (f"a frame every {steps} physics steps of 1/{PHYSICS_HZ} s",)


def _xpolicylab_instructions(file: h5py.File, data: bytes) -> tuple[str, ...]:
    if "instructions" in file:
        return string_list(json.loads(text_at(file, "instructions", data)), "/instructions")
    return (text_at(file, "instruction", data),) if "instruction" in file else ()


def _camera_matrices(file: h5py.File, readers: Mapping[str, JpegFrames]) -> dict[str, CameraMatrices]:
    """Matrices of those cameras for which the file has them."""
    paths = camera_paths(file)
    found = {
        name: read_camera_matrices(group_at(file, paths[name]), reader.size)
        for name, reader in readers.items()
    }
    return {name: matrices for name, matrices in found.items() if matrices is not None}


def _open_cameras(
    store: FileStore, name: str, file: h5py.File, cameras: Sequence[str] | None, dataset: str
) -> dict[str, JpegFrames]:
    paths = camera_paths(file)
    wanted = overview_first(sorted(paths)) if cameras is None else list(cameras)
    if missing := [camera for camera in wanted if camera not in paths]:
        raise ValueError(f"no camera {', '.join(missing)}; the file has {sorted(paths)}")
    if not wanted:
        raise ValueError("the file has no camera")
    readers = {camera: open_jpeg_frames(store, name, file, f"{paths[camera]}/{dataset}") for camera in wanted}
    for camera, reader in readers.items():
        if "shape" in (group := group_at(file, paths[camera])):
            shape = integers_at(group, "shape", (3,)).tolist()
            if shape != [*reader.size, 3]:
                raise ValueError(f"{camera}: shape says {shape}, the first frame is {reader.size}")
    return readers
