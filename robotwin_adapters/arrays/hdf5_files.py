"""One HDF5 file per episode, as ALOHA / ACT record it: /action, /observations/qpos, /observations/images/*.

Other layouts need a mapping that names their arrays. In ALOHA's files action[t] is the leader's joint vector
at frame t, a target that the follower reaches some frames later; grippers are 0 closed, 1 open. A mobile base
adds base_action (linear and angular velocity) to the action.
"""

import re
from dataclasses import replace
from pathlib import Path

from numpy import ndarray

from robotwin_adapters.actions import ArmLayout
from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, Numbers, build_episode, first_present
from robotwin_adapters.arrays.frames import ArrayFrames
from robotwin_adapters.arrays.hdf5_arrays import find_arrays
from robotwin_adapters.arrays.mapping import KeyMapping, load_mapping
from robotwin_adapters.hdf5_tree import hdf5_kind, open_hdf5
from robotwin_adapters.storage import errors_name, is_regular
from worldmodel.types import Episode, FrameReader

SUFFIXES = (".hdf5", ".h5")
ALOHA_FPS = 50.0  # control loop of ALOHA, real and simulated; the files do not store it
ACTION, BASE, STATE = "action", "base_action", "observations/qpos"
BASE_NAMES = ("base_linear", "base_angular")
COMMANDS_NOTE = "actions are the leader's joint positions (commands), states the follower's"
FPS_NOTE = f"the files name no rate: {ALOHA_FPS:g} frames per second as ALOHA records (mapping: fps)"
COLORS_NOTE = (
    "encoded pictures: standard colors assumed (mapping: swapped_colors: true exchanges red and blue)"
)


def hdf5_files(path: Path) -> list[Path]:
    """The HDF5 files directly in this folder, in order of their numbers."""
    files = (p for p in path.iterdir() if p.suffix in SUFFIXES and is_regular(p)) if path.is_dir() else ()
    return sorted((p for p in files if not p.name.startswith(".")), key=lambda p: natural_order(p.name))


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Sort key that puts episode 2 before episode 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name)]


def is_hdf5_files(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether this is an ALOHA file or a folder of them, or HDF5 files whose arrays the mapping names."""
    files = [path] if path.is_file() and path.suffix in SUFFIXES else hdf5_files(path)
    if not files:
        return False
    kind = hdf5_kind(files[0])
    return kind == "aloha" or (kind not in ("robotwin", "demos", "") and _names_pictures(path, mapping))


def _names_pictures(path: Path, mapping: str | Path | None) -> bool:
    try:
        return bool(load_mapping(path, mapping).camera_keys)
    except ValueError:  # a mapping for another format
        return False


class Hdf5FilesDataset(ArrayDataset):
    """The episodes of a folder of HDF5 files, or one such file."""

    def _find(self) -> list[Path]:
        files = [self.root] if self.root.is_file() else hdf5_files(self.root)
        if not files:
            raise ValueError(f"{self.root}: no .hdf5 or .h5 file in it")
        self.is_aloha = hdf5_kind(files[0]) == "aloha"
        self.format = "ALOHA HDF5" if self.is_aloha else "HDF5, an episode a file"
        self.action_space = self.mapping.action_space or ("joint_commands" if self.is_aloha else "")
        return files

    def __getitem__(self, index: int) -> Episode:
        path = self.episodes[index]
        with errors_name(str(path)), open_hdf5(path) as file:
            numbers, pictures = find_arrays(file, path, self.mapping)
            keys = self.mapping.over(self._defaults(numbers))
            arrays = NamedArrays(path.stem, str(path), numbers, pictures, is_whole_file=True)
            episode = build_episode(arrays, keys, self.camera)
        return replace(episode, notes=(*episode.notes, *self._notes(episode)))

    def _defaults(self, numbers: Numbers) -> KeyMapping:
        folder = self.root.resolve().parent if self.root.is_file() else self.root.resolve()
        if not self.is_aloha:
            return KeyMapping(embodiment=folder.name)
        actions = first_present(((ACTION, BASE), (ACTION,)), numbers)
        arms = ArmLayout(6, 6).names if ACTION in numbers and _width(numbers[ACTION]()) == 14 else ()
        return KeyMapping(
            action_keys=actions,
            state_keys=(STATE,) if STATE in numbers else (),
            action_names=(*arms, *(BASE_NAMES if BASE in actions else ())) if arms else (),
            state_names=arms if STATE in numbers and _width(numbers[STATE]()) == len(arms) else (),
            action_space="joint_commands",
            fps=ALOHA_FPS,
            embodiment="aloha",
            task=folder.name,
        )

    def _notes(self, episode: Episode) -> tuple[str, ...]:
        encoded = any(_is_encoded(reader) for reader in episode.frames.values())
        return (
            *((COMMANDS_NOTE,) if self.is_aloha and not self.mapping.action_keys else ()),
            *((FPS_NOTE,) if self.is_aloha and not self.mapping.fps else ()),
            *((COLORS_NOTE,) if encoded and self.mapping.swapped_colors is None else ()),
        )


def _width(values: ndarray) -> int:
    return values.shape[1] if values.ndim == 2 else 0


def _is_encoded(reader: FrameReader) -> bool:
    return isinstance(reader, ArrayFrames) and getattr(reader.source, "is_encoded", False)
