"""Maps the named arrays of an episode to actions, states and cameras: one small YAML for all such formats."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from robotwin_adapters.mapping import DataMapping, read_mapping
from worldmodel.data.action_spaces import check_action_space


@dataclass(frozen=True)
class KeyMapping:
    """Names of arrays, and facts that the files lack; empty settings use the format's defaults."""

    action_keys: tuple[str, ...] = ()  # concatenated; empty and no default: the next state
    state_keys: tuple[str, ...] = ()  # concatenated, one row per frame
    camera_keys: tuple[str, ...] = ()  # arrays of pictures; empty: all of them
    cameras: tuple[str, ...] = ()  # new names for the cameras, in the order of camera_keys
    text_key: str = ""  # array or attribute with the instruction
    action_names: tuple[str, ...] = ()  # one per action dimension
    state_names: tuple[str, ...] = ()  # one per state dimension
    action_space: str = ""  # joint_commands, pose_commands or measured_poses; empty: unknown
    fps: float = 0.0  # frames per second; 0: from the files or the format
    embodiment: str = ""  # name of the robot
    task: str = ""  # name of the task
    swapped_colors: bool | None = None  # encoded pictures have red and blue swapped; none: as in the format
    upside_down: bool | None = None  # pictures are stored bottom row first; none: as in the format

    def __post_init__(self) -> None:
        check_action_space(self.action_space)
        if self.fps < 0:
            raise ValueError(f"fps is positive, or 0 for what the files say, got {self.fps}")
        if self.cameras and len(self.cameras) != len(self.camera_keys):
            raise ValueError(f"cameras renames camera_keys one by one, got {self.cameras} {self.camera_keys}")

    def over(self, defaults: "KeyMapping") -> "KeyMapping":
        """These settings, with the given defaults for those that are not set."""
        said = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        return replace(defaults, **said)


def load_mapping(root: Path, mapping: str | Path | None) -> KeyMapping:
    """The given YAML, else the dataset.yaml of the folder, else an empty mapping."""
    given = read_mapping(root, mapping) or DataMapping()
    return KeyMapping(
        **{field.name: _plain(getattr(given, field.name), field.default) for field in fields(KeyMapping)}
    )


def _plain(value: Any, default: Any) -> Any:
    """The user's setting, or the default of the data format where it is None."""
    return default if value is None else value
