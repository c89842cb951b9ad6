"""HDF5 files with many demonstrations under /data/demo_N: robomimic, LIBERO, Isaac Lab, MimicGen.

Files with numbered groups at the top level, such as /episode_0, are read in the same way. ManiSkill's are
such files; a JSON file of the same name gives their control mode, which separates targets from deltas.

Row t of `actions` was applied at observation t and leads to observation t + 1. With robosuite's usual
controller an action is [dx dy dz, rotation vector, gripper]: deltas in its own units (-1 .. 1), and a
gripper: -1 open, 1 closed. If env_args contains control_delta: false, they are targets. Nothing is converted.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py

from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, Numbers, build_episode, first_present
from robotwin_adapters.arrays.hdf5_arrays import find_arrays, json_objects, whole_number
from robotwin_adapters.arrays.hdf5_files import SUFFIXES, hdf5_files, natural_order
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.hdf5_tree import episodes_at_top, group_at, hdf5_kind, names_in, open_hdf5, stamp_of
from robotwin_adapters.storage import errors_name
from worldmodel.checked import is_regular, read_json
from worldmodel.types import Episode

DATA = "data/"
FPS = 20.0  # of robosuite, LIBERO and Isaac Lab's manipulation tasks, unless the file gives another rate
ACTIONS = (("actions",), ("action",))
DELTA_POSE = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")  # of 7 columns
ABSOLUTE_POSE = ("x", "y", "z", "rx", "ry", "rz", "gripper")
STATES = (
    ("obs/robot0_eef_pos", "obs/robot0_eef_quat", "obs/robot0_gripper_qpos"),  # robomimic, MimicGen
    ("obs/ee_states", "obs/gripper_states"),  # LIBERO
    ("obs/eef_pos", "obs/eef_quat", "obs/gripper_pos"),  # Isaac Lab
    ("obs/joint_pos",),
    ("obs/joint_positions",),
    ("obs/qpos",),
    ("obs/agent/qpos",),  # ManiSkill
    ("obs/state",),
    ("observations/qpos",),
    ("observation/state",),
)
LIBERO_CAMERA = "obs/agentview_rgb"
FPS_NOTE = f"the file names no rate: {FPS:g} frames per second assumed (mapping: fps)"
UPSIDE_DOWN_NOTE = "pictures turned upright: LIBERO stores the bottom row first (mapping: upside_down: false)"


def is_robomimic(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether this is such a file or a folder of them."""
    files = [path] if path.is_file() and path.suffix in SUFFIXES else hdf5_files(path)
    return bool(files) and hdf5_kind(files[0]) == "demos"


class RobomimicDataset(ArrayDataset):
    """The demonstrations of one file, or of all files in a folder."""

    format = "robomimic HDF5"

    def _find(self) -> list[tuple[Path, str]]:
        files = [self.root] if self.root.is_file() else hdf5_files(self.root)
        return [(file, demo) for file in files for demo in _demos(file)]

    def __getitem__(self, index: int) -> Episode:
        path, demo = self.episodes[index]
        name = demo.removeprefix(DATA)
        with errors_name(str(path)), open_hdf5(path) as file:
            group = group_at(file, demo)
            is_libero = LIBERO_CAMERA in group
            stored = KeyMapping(upside_down=is_libero)
            numbers, pictures = find_arrays(group, path, self.mapping.over(stored))
            about = _about(str(path), stamp_of(path))
            notes = (UPSIDE_DOWN_NOTE,) if is_libero and self.mapping.upside_down is None else ()
            arrays = NamedArrays(
                uid=name if self.root.is_file() else f"{path.stem}/{name}",
                source=f"{path}:{name}",
                numbers=numbers,
                # `next_obs` repeats the pictures one frame later.
                pictures={key: value for key, value in pictures.items() if not key.startswith("next_obs/")},
                instructions=(about.text,) if about.text else (),
                notes=notes if about.fps or self.mapping.fps else (*notes, FPS_NOTE),
            )
            keys = self.mapping.over(self._defaults(path, demo, numbers, about))
            episode = build_episode(arrays, keys, self.camera)
            _check_count(group, episode)
        is_pose = episode.action_names in (DELTA_POSE, ABSOLUTE_POSE)
        if about.is_absolute is None or not (is_pose or about.mode):
            return episode
        # The gripper, the last column, is an absolute command in every mode.
        return replace(episode, delta_actions=() if about.is_absolute else episode.action_names[:-1])

    def _defaults(self, path: Path, demo: str, numbers: Numbers, about: "About") -> KeyMapping:
        actions = first_present(ACTIONS, numbers)
        width = numbers[actions[0]]().shape[-1] if actions == ACTIONS[0] else 0
        is_pose = width == 7 and (demo.startswith(DATA) or "_ee_" in about.mode)
        return KeyMapping(
            action_keys=actions,
            state_keys=first_present(STATES, numbers),
            action_names=(ABSOLUTE_POSE if about.is_absolute else DELTA_POSE) if is_pose else (),
            fps=about.fps or FPS,
            embodiment=about.robot or self.name,
            task=about.text or about.task or path.stem,
        )


@dataclass(frozen=True)
class About:
    """Settings from the file's attributes that apply to all its demonstrations."""

    fps: float = 0.0  # 0: not given
    robot: str = ""
    task: str = ""
    text: str = ""  # instruction
    is_absolute: bool | None = None  # the controller expects targets, not deltas; none: not given
    mode: str = ""  # ManiSkill's name of the controller


@lru_cache(maxsize=512)
def _about(path: str, stamp: tuple[int, int]) -> About:
    """Parse robomimic's env_args, LIBERO's problem_info, Isaac Lab's sim_args or ManiSkill's env_info."""
    about = About()
    for said in (*json_objects(Path(path)), *_beside(Path(path))):
        arguments = said.get("env_kwargs")
        arguments = arguments if isinstance(arguments, dict) else {}
        robots = arguments.get("robots") or arguments.get("robot_uids")
        mode = _text(arguments.get("control_mode")) or about.mode
        robots = robots[0] if isinstance(robots, list) and robots else robots
        about = About(
            fps=_number(arguments.get("control_freq")) or _isaac_fps(said.get("sim_args")) or about.fps,
            robot=robots if isinstance(robots, str) else about.robot,
            task=_text(said.get("env_name")) or _text(said.get("env_id")) or about.task,
            text=_text(said.get("language_instruction")) or about.text,
            is_absolute=_is_absolute(arguments.get("controller_configs"), _of_mode(mode, about.is_absolute)),
            mode=mode,
        )
    return about


def _beside(path: Path) -> list[dict[str, Any]]:
    """ManiSkill's settings for all episodes of a file, from the JSON file of the same name."""
    beside = path.with_suffix(".json")
    said = read_json(beside).get("env_info") if is_regular(beside) else None
    return [said] if isinstance(said, dict) else []


def _of_mode(mode: str, otherwise: bool | None) -> bool | None:
    """Whether a ManiSkill control mode is absolute: pd_joint_pos, pd_joint_delta_pos, pd_joint_vel, ..."""
    return "delta" not in mode and "vel" not in mode if mode.startswith("pd_") else otherwise


def _is_absolute(controller: Any, otherwise: bool | None) -> bool | None:
    """From robosuite's control_delta; since version 1.5, from input_type of each body part."""
    if not isinstance(controller, dict):
        return otherwise
    if isinstance(said := controller.get("control_delta"), bool):
        return not said
    parts = controller.get("body_parts", {})
    for part in (controller, *(parts.values() if isinstance(parts, dict) else ())):
        said = part.get("input_type") if isinstance(part, dict) else None
        if said in ("absolute", "delta"):
            return bool(said == "absolute")
    return otherwise


def _isaac_fps(sim_args: Any) -> float:
    said = sim_args if isinstance(sim_args, dict) else {}
    seconds = _number(said.get("dt")) * _number(said.get("decimation"))
    return 1 / seconds if seconds > 0 else 0.0


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e4
    return float(value) if is_number else 0.0


def _text(value: Any) -> str:
    # Some instructions of LIBERO have an extra pair of quotes.
    return value.strip().strip('"') if isinstance(value, str) else ""


def _demos(path: Path) -> list[str]:
    with errors_name(str(path)), open_hdf5(path) as file:
        if "data" not in names_in(file):
            return sorted(episodes_at_top(file), key=natural_order)
        demos = [name for name in names_in(group_at(file, "data")) if name.startswith("demo")]
    return [f"{DATA}{demo}" for demo in sorted(demos, key=natural_order)]


def _check_count(group: h5py.Group, episode: Episode) -> None:
    """Refuse a group whose declared number of rows differs from its data: the file is damaged."""
    declared = whole_number(group, "num_samples")
    if declared is not None and declared != episode.num_frames:
        raise ValueError(f"{group.name}: num_samples is {declared}, but it has {episode.num_frames} frames")
