"""DROID's raw recordings: an episode is a folder with trajectory.h5 and a video for each camera.

    LAB/success/2023-07-07/Fri_Jul__7_09:42:23_2023/trajectory.h5        numbers, 15 a second
                                                    recordings/MP4/24400334.mp4
                                                    metadata_*.json      task, and the position of each camera

Row t of /action is the command at frame t and leads to frame t + 1: a target pose (meters, Euler angles) and
a gripper (0 open, 1 closed). Stereo videos and incomplete folders are skipped.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, build_episode
from robotwin_adapters.arrays.frames import video_of_rows
from robotwin_adapters.arrays.hdf5_arrays import find_arrays
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.hdf5_tree import open_hdf5
from robotwin_adapters.storage import errors_name, walk_tree
from worldmodel.checked import read_json
from worldmodel.types import Episode

FILE, VIDEOS = "trajectory.h5", "recordings/MP4"
FPS = 15.0  # of the control loop; the videos declare 60
POSE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
ACTIONS = ("action/cartesian_position", "action/gripper_position")
STATES = ("observation/robot_state/cartesian_position", "observation/robot_state/gripper_position")
CAMERAS = {"ext1_cam_serial": "exterior_1", "ext2_cam_serial": "exterior_2", "wrist_cam_serial": "wrist"}
ACTION_NOTE = "actions are target poses, action/cartesian_position (mapping: action_keys takes others)"


def find_droid(root: Path) -> list[str]:
    """Episode folders at or below this one, as relative paths."""
    return [
        folder.relative_to(root).as_posix()
        for folder, _, files in walk_tree(root)
        if FILE in files and (folder / VIDEOS).is_dir()
    ]


class DroidDataset(ArrayDataset):
    """The episodes of a tree of raw DROID recordings."""

    format = "DROID raw"

    def _find(self) -> list[str]:
        self.action_space = self.mapping.action_space or "pose_commands"
        return find_droid(self.root)

    def __getitem__(self, index: int) -> Episode:
        place = self.episodes[index]
        path = self.root / place / FILE
        with errors_name(str(path)), open_hdf5(path) as file:
            numbers, _ = find_arrays(file, path, KeyMapping())
            keys = self.mapping.over(_defaults())
            length = len(numbers[keys.action_keys[0]]()) if keys.action_keys[0] in numbers else 0
            about = _about(path.parent)
            videos = _videos(path.parent, about)
            text = about.get("current_task")
            arrays = NamedArrays(
                uid=place if place != "." else self.name,
                source=str(path),
                numbers=numbers,
                pictures={n: partial(video_of_rows, p, length, self.verify) for n, p in videos.items()},
                instructions=(text.strip(),) if isinstance(text, str) and text.strip() else (),
                notes=() if self.mapping.action_keys else (ACTION_NOTE,),
            )
            episode = build_episode(arrays, keys, self.camera)
        return episode if self.mapping.action_keys else replace(episode, delta_actions=())


def _defaults() -> KeyMapping:
    return KeyMapping(
        action_keys=ACTIONS,
        state_keys=STATES,
        action_names=POSE,
        state_names=POSE,
        action_space="pose_commands",
        fps=FPS,
        embodiment="droid_franka",
    )


def _about(folder: Path) -> dict[str, Any]:
    found = sorted(folder.glob("metadata_*.json"))
    return dict(read_json(found[0])) if found else {}


def _videos(folder: Path, about: dict[str, Any]) -> dict[str, Path]:
    """Camera -> file; cameras are named by their position if the metadata list it, else by serial number."""
    names = {str(about.get(key)): name for key, name in CAMERAS.items()}
    files = sorted(p for p in (folder / VIDEOS).glob("*.mp4") if not p.stem.endswith("-stereo"))
    if not files:
        raise ValueError(f"no video in {folder / VIDEOS}")
    return {names.get(path.stem, path.stem): path for path in files}
