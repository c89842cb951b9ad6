"""Zarr replay buffers of Diffusion Policy and UMI: /data/* holds all episodes, /meta/episode_ends their ends.

Row t of `action` was commanded at observation t and leads to observation t + 1. UMI has no action: its poses
are measured, rotations are rotation vectors, and the next pose is the action. Push-T's actions are positions
of the pusher in pixels of a 512 x 512 board.

Real recordings of Diffusion Policy store pictures separately, as videos/<episode>/<camera>.mp4 at the
camera's own rate. Row t is then the frame at the time of that row, counted from the episode's start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, Numbers, build_episode, first_present
from robotwin_adapters.arrays.frames import ArrayFrames
from robotwin_adapters.arrays.hdf5_files import natural_order
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.arrays.pictures import frame_size, looks_like_pictures, to_rgb
from robotwin_adapters.arrays.zarr_arrays import V2, V3, ZarrArray, is_zarr_array, open_zarr_array
from robotwin_adapters.resample import ChosenFrames
from robotwin_adapters.storage import FileStore, FolderFiles, ZipFiles, errors_name
from worldmodel.data.video import open_video, probe_video
from worldmodel.types import Episode, FrameReader

ENDS = "meta/episode_ends"
MAX_NUMBERS = 64 << 20  # bytes of one array in one episode
DENSE = 4  # read a contiguous block if at least one frame in this many is needed
ASSUMED_FPS, UMI_FPS = 10.0, 60.0
FPS_NOTE = f"no array tells the rate: {ASSUMED_FPS:g} frames per second assumed (mapping: fps)"
UMI_PARTS = {
    "eef_pos": ("x", "y", "z"),
    "eef_rot_axis_angle": ("rx", "ry", "rz"),
    "gripper_width": ("gripper",),
}
STATES = (("state",), ("robot_eef_pose",), ("agent_pos",), ("robot_joint",))


def is_zarr_replay(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether this is a replay buffer, a folder or a .zarr.zip."""
    if path.is_dir():
        return any((path / ENDS / name).is_file() for name in (V2, V3))
    return path.is_file() and path.name.endswith(".zarr.zip")


class ZarrReplayDataset(ArrayDataset):
    """The episodes of one replay buffer."""

    format = "Zarr replay buffer"

    def _find(self) -> list[int]:
        self.name = self.root.resolve().name.removesuffix(".zip").removesuffix(".zarr")
        with errors_name(str(self.root)):
            self.store, prefix = _open_store(self.root)
            self.arrays = {
                name: open_zarr_array(self.store, f"{prefix}data/{name}")
                for name in _children(self.store, f"{prefix}data/")
            }
            self.action_space = self.mapping.action_space or ("measured_poses" if self._umi_robots() else "")
            ends = open_zarr_array(self.store, f"{prefix}{ENDS}")
            return _checked_ends(ends.rows(0, len(ends)), self.arrays)

    def __getitem__(self, index: int) -> Episode:
        index = range(len(self))[index]
        first, last = self.episodes[index - 1] if index else 0, self.episodes[index]
        with errors_name(str(self.root)):
            found = {name: a for name, a in self.arrays.items() if not _are_pictures(name, a)}
            numbers: Numbers = {name: partial(_rows, array, first, last) for name, array in found.items()}
            keys = self.mapping.over(self._defaults(numbers))
            arrays = NamedArrays(
                uid=f"episode_{index:06d}",
                source=f"{self.root}:episode_{index:06d}",
                numbers=numbers,
                pictures={
                    name: partial(self._frames, array, first, last - first)
                    for name, array in self.arrays.items()
                    if name not in found
                }
                or self._videos(index, last - first, keys.fps or ASSUMED_FPS),
                notes=() if keys.fps else (FPS_NOTE,),
            )
            return build_episode(arrays, keys.over(KeyMapping(fps=ASSUMED_FPS)), self.camera)

    def _frames(self, array: ZarrArray, first: int, length: int) -> ArrayFrames:
        source = ZarrPictures(str(self.root), array)
        upside_down = bool(self.mapping.upside_down)
        return ArrayFrames(source, length, frame_size(array.shape), first, upside_down=upside_down)

    def _videos(self, index: int, length: int, fps: float) -> dict[str, Callable[[], FrameReader]]:
        files = sorted((self.root.parent / "videos" / str(index)).glob("*.mp4"))
        return {path.stem: partial(_video_at_rate, path, length, fps, self.verify) for path in files}

    def _umi_robots(self) -> list[str]:
        return sorted(name[: -len("_eef_pos")] for name in self.arrays if name.endswith("_eef_pos"))

    def _defaults(self, numbers: Numbers) -> KeyMapping:
        robots = self._umi_robots()
        if robots and "action" not in numbers:
            parts = [(robot, part) for robot in robots for part in UMI_PARTS if f"{robot}_{part}" in numbers]
            return KeyMapping(
                state_keys=tuple(f"{robot}_{part}" for robot, part in parts),
                state_names=tuple(f"{robot}_{name}" for robot, part in parts for name in UMI_PARTS[part]),
                action_space="measured_poses",
                fps=UMI_FPS,
                embodiment="umi",
            )
        return KeyMapping(
            action_keys=("action",) if "action" in numbers else (),
            state_keys=first_present(STATES, numbers),
            fps=_clock(numbers["timestamp"]()) if "timestamp" in numbers else 0.0,
            embodiment=self.name,
        )


@dataclass(frozen=True)
class ZarrPictures:
    """The pictures of one array."""

    path: str
    array: ZarrArray

    def load(self, rows: Int64[ndarray, " n"]) -> UInt8[ndarray, "n H W 3"]:
        """The pictures at these rows, in ascending order."""
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first <= DENSE * len(rows):
            return to_rgb(self.array.rows(first, last)[rows - first])
        return to_rgb(np.concatenate([self.array.rows(int(row), int(row) + 1) for row in rows]))


def _video_at_rate(path: Path, length: int, fps: float, verify: bool) -> FrameReader:
    """The video frame for each row; the video may have a higher frame rate."""
    table = probe_video(path)
    count, ratio = len(table.pts), table.fps / fps
    wanted = np.round(np.arange(length) * ratio).astype(int)
    if wanted[-1] - (count - 1) > max(1.0, ratio):
        raise ValueError(
            f"{path}: {count} frames at {table.fps:.4g} a second, {wanted[-1] + 1} needed for {length} rows "
            f"at {fps:.4g}"
        )
    return ChosenFrames(open_video(path, verify=verify), tuple(np.minimum(wanted, count - 1).tolist()))


def _open_store(path: Path) -> tuple[FileStore, str]:
    """The files, and the prefix of all names: archives often contain the buffer's folder."""
    if path.is_dir():
        return FolderFiles(path), ""
    store = ZipFiles(path)
    ends = (f"{ENDS}/0", f"{ENDS}/{V3}")  # hidden names such as .zarray are not listed
    inside = {name[: -len(end)] for name in store.names() for end in ends if name.endswith(end)}
    if len(inside) != 1:
        raise ValueError(f"expected one replay buffer with {ENDS} in the archive, got {len(inside)}")
    return store, inside.pop()


def _children(store: FileStore, prefix: str) -> list[str]:
    if isinstance(store, FolderFiles):
        folder = store.root / prefix
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    else:
        inside = (PurePosixPath(n.removeprefix(prefix)) for n in store.names() if n.startswith(prefix))
        names = {path.parts[0] for path in inside}
    return sorted((n for n in names if is_zarr_array(store, f"{prefix}{n}")), key=natural_order)


def _checked_ends(ends: ndarray, arrays: dict[str, ZarrArray]) -> list[int]:
    if ends.ndim != 1 or ends.dtype.kind not in "iu" or not len(ends) or (np.diff(ends, prepend=0) < 1).any():
        raise ValueError(f"{ENDS} should ascend, got {ends.dtype} {ends[:8].tolist()}")
    wrong = {name: len(array) for name, array in arrays.items() if len(array) != ends[-1]}
    if wrong:
        raise ValueError(f"{ENDS} ends at {int(ends[-1])}, but arrays have other lengths: {wrong}")
    return [int(end) for end in ends]


def _are_pictures(name: str, array: ZarrArray) -> bool:
    return looks_like_pictures(name, array.shape, np.dtype(array.dtype))


def _rows(array: ZarrArray, first: int, last: int) -> ndarray:
    size = (last - first) * int(np.prod(array.shape[1:])) * np.dtype(array.dtype).itemsize
    if size > MAX_NUMBERS:
        raise ValueError(f"{array.path}: {size} bytes of numbers in one episode")
    return array.rows(first, last)


def _clock(times: ndarray) -> float:
    """Frames per second from timestamps in seconds; 0 if they are not usable."""
    steps = np.diff(times.reshape(len(times), -1)[:, 0].astype(np.float64))
    step = float(np.median(steps)) if len(steps) else 0.0
    return 1 / step if step > 1e-4 else 0.0
