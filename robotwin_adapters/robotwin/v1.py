"""RoboTwin 1.0 episodes (format C): one pickle per frame.

Each file holds both numbers and pictures, so opening an episode reads all of it; the pictures are not kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from robotwin_adapters.actions import ArmLayout, split_arms
from robotwin_adapters.camera_order import overview_first
from robotwin_adapters.robotwin.plain_pickle import PickledArray, load_plain_pickle
from robotwin_adapters.robotwin.recording import ActionSpace, Recording, joint_rows
from robotwin_adapters.storage import FileStore, errors_name

MAX_PICKLE_BYTES = 128 << 20
GRIPPER_OPEN_M = 0.045  # finger travel that counts as 1
LAYOUT = ArmLayout(6, 6)  # Aloha is the only robot of RoboTwin 1.0


@dataclass(frozen=True)
class PickleFrames:
    """The uncompressed RGB frames of one camera, one pickle per frame."""

    store: FileStore
    names: tuple[str, ...]  # one file per frame
    camera: str
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, indices: Sequence[int]) -> UInt8[ndarray, "n H W 3"]:
        """The RGB frames at these positions."""
        wanted = [self.names[index] for index in indices]
        loaded = {name: self._load(name) for name in dict.fromkeys(wanted)}
        return (
            np.stack([loaded[name] for name in wanted]) if wanted else np.empty((0, *self.size, 3), np.uint8)
        )

    def take(self, rows: Sequence[int]) -> "PickleFrames":
        """Select frames."""
        return replace(self, names=tuple(self.names[row] for row in rows))

    def is_unchanged(self, first: int, second: int, tolerance: float) -> bool:
        """Whether the mean difference is at most `tolerance` gray levels."""
        before, after = self.read([first, second]).astype(np.int16)
        return float(np.abs(after - before).mean()) <= tolerance

    def _load(self, name: str) -> UInt8[ndarray, "H W 3"]:
        with errors_name(self.store.label(name)):
            pixels = _picture(_load_frame(self.store, name), self.camera)
            if pixels.shape[:2] != self.size:
                raise ValueError(f"{self.camera}: expected {self.size} pixels, got {pixels.shape[:2]}")
            return pixels


def read_v1_episode(
    store: FileStore, names: Sequence[str], cameras: Sequence[str] | None, action_space: ActionSpace
) -> Recording:
    """Read the episode whose frames are these pickles, in order."""
    if action_space != "joint_commands":
        raise ValueError(
            f"expected action_space joint_commands, got {action_space}: the end poses of RoboTwin 1.0 are "
            "roll, pitch and yaw"
        )
    rows = []
    sizes: dict[str, tuple[int, int]] = {}
    for name in names:
        with errors_name(store.label(name)):
            frame = _load_frame(store, name)
            rows.append(_joint_row(frame))
            wanted = overview_first(sorted(_observation(frame))) if cameras is None else cameras
            for camera in wanted:
                size = _picture(frame, camera).shape[:2]
                if sizes.setdefault(camera, size) != size:
                    raise ValueError(f"{camera}: expected {sizes[camera]} pixels, got {size}")
    parts = split_arms(np.stack(rows), LAYOUT)
    opened = replace(
        parts,
        left_gripper=parts.left_gripper / GRIPPER_OPEN_M,
        right_gripper=parts.right_gripper / GRIPPER_OPEN_M,
    )
    vector, columns = joint_rows(opened)
    states = vector.astype(np.float32)
    return Recording(
        states=states,
        actions=states[1:],
        names=columns,
        layout=LAYOUT,
        action_space=action_space,
        frames={name: PickleFrames(store, tuple(names), name, size) for name, size in sizes.items()},
        notes=(
            "joints and grippers are commanded targets, not measured positions",
            f"RoboTwin 1.0: grippers divided by {GRIPPER_OPEN_M} m; action i is row i + 1",
        ),
    )


def _load_frame(store: FileStore, name: str) -> dict:
    frame = load_plain_pickle(store.read(name, MAX_PICKLE_BYTES))
    if not isinstance(frame, dict):
        raise ValueError(f"expected a dictionary, got {type(frame).__name__}")
    return frame


def _observation(frame: dict) -> dict:
    cameras = frame.get("observation")
    if not isinstance(cameras, dict) or not cameras or not all(isinstance(name, str) for name in cameras):
        raise ValueError("expected a dictionary of cameras under 'observation'")
    return cameras


def _picture(frame: dict, camera: str) -> UInt8[ndarray, "H W 3"]:
    cameras = _observation(frame)
    if not isinstance(cameras.get(camera), dict) or "rgb" not in cameras[camera]:
        raise ValueError(f"no camera {camera} with rgb; the frame has {sorted(cameras)}")
    pixels = _to_array(cameras[camera]["rgb"], f"{camera}/rgb")
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"{camera}/rgb: expected uint8 (H, W, 3), got {pixels.dtype} {pixels.shape}")
    return pixels


def _joint_row(frame: dict) -> Float[ndarray, " a"]:
    row = _to_array(frame.get("joint_action"), "joint_action")
    if row.dtype.kind != "f" or row.shape != (LAYOUT.width,):
        raise ValueError(f"joint_action: expected {LAYOUT.width} floats, got {row.dtype} {row.shape}")
    return row.astype(np.float64)


def _to_array(value: object, name: str) -> ndarray:
    if not isinstance(value, PickledArray):
        raise ValueError(f"{name}: expected a numpy array, got {type(value).__name__}")
    return value.to_numpy()
