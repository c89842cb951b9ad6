"""RoboTwin datasets as episodes: 2.0 HDF5 (legacy, XPolicyLab v1.0) and 1.0 pickles, in folders or zips."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import cast

from robotwin_adapters.hdf5_tree import hdf5_kind
from robotwin_adapters.robotwin.hdf5 import read_hdf5_episode
from robotwin_adapters.robotwin.names import V1_EMBODIMENT, embodiment_from, task_from
from robotwin_adapters.robotwin.recording import ActionSpace, Recording, drop_static
from robotwin_adapters.robotwin.side_files import read_about, read_instructions
from robotwin_adapters.robotwin.v1 import read_v1_episode
from robotwin_adapters.storage import FileStore, FolderFiles, Stamp, ZipFiles, errors_name
from worldmodel.data.action_spaces import check_action_space
from worldmodel.types import Episode

HDF5_NAME = re.compile(r"(?:(?P<folder>.+)/)?episode_?(?P<number>\d{1,9})\.hdf5")
PICKLE_NAME = re.compile(r"(?P<episode>(?:.+/)?episode(?P<number>\d{1,9}))/(?P<frame>\d{1,9})\.pkl")
MAX_RECORDINGS = 4096  # kept per process, without frames: some 20 kB each


@dataclass(frozen=True)
class EpisodeFiles:
    """Location of one episode."""

    uid: str
    root: str  # folder that holds data/, instructions/ and scene_info.json
    number: int
    names: tuple[str, ...]  # one HDF5 file, or one pickle per frame

    @property
    def is_hdf5(self) -> bool:
        """Whether the format is A or B rather than C."""
        return self.names[0].endswith(".hdf5")


@dataclass(frozen=True)
class ReadChoices:
    """The options that determine the contents of a recording."""

    cameras: tuple[str, ...] | None
    action_space: ActionSpace
    static_tolerance: float | None


def find_robotwin(path: str | Path) -> bool:
    """Whether there is a RoboTwin episode in this folder, archive or file."""
    path = Path(path)
    if not path.exists() or (path.is_file() and path.suffix not in (".hdf5", ".zip")):
        return False
    store, names = _open_store(path)
    return any(
        PICKLE_NAME.fullmatch(name) or (HDF5_NAME.fullmatch(name) and not _is_foreign(store, name))
        for name in names or store.names()
    )


def _is_foreign(store: FileStore, name: str) -> bool:
    """Whether the file is an ALOHA episode, which has the same name; errors are left to the reader."""
    return isinstance(store, FolderFiles) and hdf5_kind(store.label(name)) not in ("robotwin", "")


class RobotwinDataset:
    """The episodes under a folder, inside a zip archive, or in one HDF5 file, sorted by number."""

    def __init__(
        self,
        path: str | Path,
        *,
        cameras: Sequence[str] | None = None,
        action_space: str = "joint_commands",
        static_tolerance: float | None = None,
    ) -> None:
        """Find the episodes.

        Args:
            path: folder at any height above data/episode0.hdf5, a .zip, or one .hdf5.
            cameras: names in format A (head_camera, ...), required in every episode; None uses all cameras.
            action_space: joint_commands; measured_poses, whose grippers are commanded; or pose_commands,
                which only files of the embedded tabletop hold.
            static_tolerance: drop frames that repeat the one before, up to this mean difference in gray
                levels between the two pictures. None keeps all; 0 requires equal bytes; ray-traced datasets
                are noisy and need about 1.
        """
        self._path = Path(path)
        chosen = None if cameras is None else tuple(cameras)
        space = cast(ActionSpace, check_action_space(action_space) or "joint_commands")
        self._choices = ReadChoices(chosen, space, static_tolerance)
        with errors_name(str(path)):
            self._store, names = _open_store(self._path)
            self._files = _find_episodes(names or self._store.names())
            if not self._files:
                raise ValueError(
                    "no RoboTwin episode here (data/episode0.hdf5 or episode0/0.pkl, at any depth)"
                )

    @property
    def name(self) -> str:
        """Name of the folder or archive."""
        path = self._path.resolve()
        return path.stem if path.is_file() else path.name

    format = "RoboTwin"

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Episode:
        files = self._files[index]
        source = self._store.label(files.names[0] if files.is_hdf5 else files.uid)
        with errors_name(source):
            stamps = tuple(self._store.stamp(name) for name in files.names)
            recording = _read_recording(self._store, files, stamps, self._choices)
        about = read_about(self._store, files.root, files.number)
        folders = (*self._store.folders(), *PurePosixPath(files.root).parts)
        embodiment = about.embodiment or (embodiment_from(folders) if files.is_hdf5 else V1_EMBODIMENT)
        notes = recording.notes
        if embodiment is None:
            embodiment = f"unknown_{recording.layout.left_joints}_{recording.layout.right_joints}"
            notes = (*notes, "no folder names the robot")
        return Episode(
            uid=files.uid,
            source=source,
            frames=recording.frames,
            robot_actions=recording.actions.copy(),
            action_names=recording.names,
            fps=about.fps or recording.fps,
            embodiment=embodiment,
            task=about.task or task_from(folders),
            robot_states=recording.states.copy(),
            state_names=recording.names,
            instructions=recording.instructions or self._instructions(files),
            notes=notes,
            action_space=recording.action_space,
            cameras=recording.cameras,
            delta_actions=(),
        )

    def _instructions(self, files: EpisodeFiles) -> tuple[str, ...]:
        stem = PurePosixPath(files.uid).name
        return read_instructions(self._store, files.root, stem)


# Random clips return to the same episodes many times, and a recording takes a few kilobytes.
@lru_cache(maxsize=MAX_RECORDINGS)
def _read_recording(
    store: FileStore, files: EpisodeFiles, stamps: tuple[Stamp, ...], choices: ReadChoices
) -> Recording:
    if files.is_hdf5:
        recording = read_hdf5_episode(store, files.names[0], choices.cameras, choices.action_space)
    else:
        recording = read_v1_episode(store, files.names, choices.cameras, choices.action_space)
    if choices.static_tolerance is None:
        return recording
    return drop_static(recording, choices.static_tolerance)


def _open_store(path: Path) -> tuple[FileStore, list[str]]:
    """The file store at `path`, and the requested files in it (none: all)."""
    if path.is_dir():
        return FolderFiles(path), []
    if path.suffix == ".zip":
        return ZipFiles(path), []
    if path.suffix == ".hdf5" and path.is_file():
        root = path.parent.parent if path.parent.name == "data" else path.parent
        return FolderFiles(root), [path.relative_to(root).as_posix()]
    raise ValueError("expected a folder, a .zip or an .hdf5 file")


def _find_episodes(names: Iterable[str]) -> list[EpisodeFiles]:
    found: list[EpisodeFiles] = []
    frames: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for name in names:
        if match := HDF5_NAME.fullmatch(name):
            folder = PurePosixPath(match["folder"] or "")
            root = folder.parent if folder.name == "data" else folder
            uid = name.removesuffix(".hdf5")
            found.append(EpisodeFiles(uid, root.as_posix(), int(match["number"]), (name,)))
        elif match := PICKLE_NAME.fullmatch(name):
            key = match["episode"], int(match["number"])
            frames.setdefault(key, []).append((int(match["frame"]), name))
    for (uid, number), parts in frames.items():
        pickles = tuple(name for _, name in sorted(parts))
        found.append(EpisodeFiles(uid, PurePosixPath(uid).parent.as_posix(), number, pickles))
    return sorted(found, key=lambda files: (files.root, files.number, files.uid))
