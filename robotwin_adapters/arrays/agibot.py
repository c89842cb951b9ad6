"""AgiBot World in its original layout: videos, proprio_stats.h5 and task_info, matched by task and episode.

    observations/327/648642/videos/head_color.mp4    proprio_stats/327/648642/proprio_stats.h5
    task_info/task_327.json

Row t of /action is the command at frame t and leads to frame t + 1; joints are radians, grippers as stored.
Parts of the robot that were not commanded have no rows and are skipped.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, Numbers, build_episode
from robotwin_adapters.arrays.frames import video_of_rows
from robotwin_adapters.arrays.hdf5_arrays import find_arrays
from robotwin_adapters.arrays.hdf5_files import natural_order
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.arrays.pictures import NOT_RGB
from robotwin_adapters.hdf5_tree import names_in, open_hdf5, stamp_of
from robotwin_adapters.storage import Stamp, errors_name
from worldmodel.data.video import probe_video
from worldmodel.types import Episode

NUMBERS, VIDEOS, TASKS = "proprio_stats", "observations", "task_info"
FILE = "proprio_stats.h5"
MAX_TASK_BYTES = 256 << 20
JOINT_COMMANDS = "joint_commands"
ARM_JOINTS, FINGERS = 7, 6
PARTS: dict[str, dict[int, tuple[str, ...]]] = {  # part -> names by number of columns
    "joint": {
        2 * ARM_JOINTS: tuple(f"{side}_joint{i + 1}" for side in ("left", "right") for i in range(ARM_JOINTS))
    },
    "effector": {
        2: ("left_gripper", "right_gripper"),
        2 * FINGERS: tuple(f"{side}_finger{i + 1}" for side in ("left", "right") for i in range(FINGERS)),
    },
    "head": {2: ("head_yaw", "head_pitch")},
    "waist": {2: ("waist_pitch", "waist_lift")},
}
ABSENT_NOTE = "the file holds no joint commands"


def is_agibot(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether the folder has both halves of the layout."""
    return path.is_dir() and (path / NUMBERS).is_dir() and (path / VIDEOS).is_dir()


class AgibotDataset(ArrayDataset):
    """The episodes of an unpacked AgiBot World folder."""

    format = "AgiBot World"

    def _find(self) -> list[str]:
        self.action_space = JOINT_COMMANDS
        found = (p.parent for p in (self.root / NUMBERS).glob(f"*/*/{FILE}") if p.is_file())
        places = sorted((p.relative_to(self.root / NUMBERS).as_posix() for p in found), key=natural_order)
        if not places:
            raise ValueError(f"{self.root}: no {NUMBERS}/TASK/EPISODE/{FILE} in it")
        return places

    def __getitem__(self, index: int) -> Episode:
        place = self.episodes[index]
        path = self.root / NUMBERS / place / FILE
        with errors_name(str(path)), open_hdf5(path) as file:
            numbers, _ = find_arrays(file, path, KeyMapping())
            defaults, notes = _defaults(numbers)
            videos = self._videos(place)
            length = _rows(file)
            arrays = NamedArrays(
                uid=place,
                source=str(path),
                numbers=numbers,
                pictures={n: partial(video_of_rows, p, length, self.verify) for n, p in videos.items()},
                instructions=self._instructions(place),
                notes=notes,
            )
            fps = probe_video(next(iter(videos.values()))).fps
            keys = self.mapping.over(replace(defaults, fps=fps))
            return build_episode(arrays, keys, self.camera)

    def _videos(self, place: str) -> dict[str, Path]:
        folder = self.root / VIDEOS / place / "videos"
        files = {p.stem: p for p in sorted(folder.glob("*.mp4")) if p.is_file()}
        videos = {name: p for name, p in files.items() if not any(word in name for word in NOT_RGB)}
        if not videos:
            raise ValueError(f"no video in {folder}")
        return videos

    def _instructions(self, place: str) -> tuple[str, ...]:
        task, episode = place.split("/")
        path = self.root / TASKS / f"task_{task}.json"
        if not path.is_file():
            return ()
        name = _task_names(str(path), stamp_of(path)).get(episode, "")
        return (name,) if name else ()


def _defaults(numbers: Numbers) -> tuple[KeyMapping, tuple[str, ...]]:
    """The commanded parts of the robot; without commands, the measured states of the next frame."""
    commanded = _parts(numbers, "action")
    states = _parts(numbers, "state")
    keys = KeyMapping(
        action_keys=tuple(commanded) if "action/joint/position" in commanded else (),
        state_keys=tuple(states),
        action_names=_joined(commanded) if "action/joint/position" in commanded else (),
        state_names=_joined(states),
        action_space=JOINT_COMMANDS,
        embodiment="agibot_g1",
    )
    return keys, () if keys.action_keys else (ABSENT_NOTE,)


def _parts(numbers: Numbers, root: str) -> dict[str, tuple[str, ...]]:
    """Array -> names of its columns, for the parts that have rows."""
    found = {}
    for part, names in PARTS.items():
        key = f"{root}/{part}/position"
        values = numbers[key]() if key in numbers else np.zeros((0, 0))
        if values.ndim == 2 and len(values):
            width = values.shape[1]
            found[key] = names.get(width) or tuple(f"{part}_{index}" for index in range(width))
    return found


def _joined(parts: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for names in parts.values() for name in names)


def _rows(file: h5py.File) -> int:
    times = file.get("timestamp")
    if not isinstance(times, h5py.Dataset) or times.ndim != 1:
        raise ValueError(f"expected a row of numbers /timestamp, the file has {sorted(names_in(file))}")
    return len(times)


@lru_cache(maxsize=512)
def _task_names(path: str, stamp: Stamp) -> dict[str, str]:
    """Episode number -> task name."""
    if stamp[0] > MAX_TASK_BYTES:
        raise ValueError(f"{path}: larger than {MAX_TASK_BYTES} bytes")
    try:
        entries: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        return {str(entry["episode_id"]): str(entry.get("task_name", "")).strip() for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: expected a list of episodes with episode_id ({error})") from error
