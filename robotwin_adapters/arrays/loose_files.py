"""Pictures and videos as separate files: a folder of frames per episode, or a list in JSON lines.

    episode_000/rgb/000000.png ..   with actions.npy, or .npz, .csv, .json, .jsonl, in episode_000
    episodes.jsonl                  a line per episode: {"video": "clips/0.mp4", "actions": [[..], ..], ..},
                                    or with the name of a table: {"video": .., "table": "rows/0.parquet"}
    frames.jsonl                    a line per frame: {"episode": 0, "image": "0/0.jpg", "action": [..], ..}

Paths in a list are relative to its folder and must stay inside it. Pictures are sorted by name, the lines of
an episode by their order in the file.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from robotwin_adapters.annotations import ARRAY, SUFFIXES, TABLES, read_annotation
from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, build_episode, first_present
from robotwin_adapters.arrays.frames import ArrayFrames, video_of_rows
from robotwin_adapters.arrays.hdf5_files import natural_order
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.arrays.pictures import NOT_RGB, decode_picture
from robotwin_adapters.storage import errors_name, is_regular
from worldmodel.checked import check_range
from worldmodel.data.video import probe_video
from worldmodel.types import Episode, FrameReader

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm")
FRAMES = "frames"  # camera name for pictures directly in the episode's folder
MAX_LINES, MAX_LIST_BYTES = 10_000_000, 1 << 30
ASSUMED_FPS = 10.0
FPS_NOTE = f"no file names a rate: {ASSUMED_FPS:g} frames per second assumed (mapping: fps)"
ACTIONS = (("action",), ("actions",), ("robot_action",), ("robot_actions",))
STATES = (("state",), ("states",), ("observation.state",), ("proprio",), ("qpos",), ("joint_positions",))
TEXTS = ("instruction", "language_instruction", "text", "task", "prompt", "caption")
EPISODE = ("episode", "episode_id", "episode_index", "traj_id", "trajectory", "trajectory_id", "id", "uid")

Camera = Callable[[], FrameReader]


@dataclass(frozen=True)
class PictureFiles:
    """Pictures stored as one file each."""

    path: str  # folder named in error messages
    files: tuple[str, ...]

    def load(self, rows: Int64[ndarray, " n"]) -> UInt8[ndarray, "n H W 3"]:
        """The pictures at these rows."""
        return np.stack([decode_picture(self.files[row], Path(self.files[row]).read_bytes()) for row in rows])


def open_pictures(folder: Path, files: list[Path]) -> ArrayFrames:
    """A reader of these files, one frame each."""
    source = PictureFiles(str(folder), tuple(map(str, files)))
    return ArrayFrames(source, len(files), source.load(np.zeros(1, np.int64)).shape[1:3])


class LooseDataset(ArrayDataset):
    """Shared by both layouts: how columns are found and named."""

    def _episode(
        self, uid: str, source: Path, content: Mapping[str, Any], cameras: Mapping[str, Camera], fps: float
    ) -> Episode:
        numbers = {key: partial(np.asarray, value) for key, value in content.items() if _is_table(value)}
        texts = [content[key] for key in (self.mapping.text_key, *TEXTS) if key in content]
        said = next((text for text in texts if isinstance(text, str) and text.strip()), "")
        rate = _rate(content, fps)
        arrays = NamedArrays(
            uid=uid,
            source=str(source),
            numbers=numbers,
            pictures=cameras,
            instructions=(said,) if said else (),
            notes=() if rate or self.mapping.fps else (FPS_NOTE,),
            is_whole_file=True,
        )
        keys = KeyMapping(
            action_keys=first_present(ACTIONS, numbers) or _parts("action", numbers),
            state_keys=first_present(STATES, numbers) or _parts("state", numbers),
            fps=rate or ASSUMED_FPS,
            embodiment=self.name,
        )
        return build_episode(arrays, self.mapping.over(keys), self.camera)


class PictureFoldersDataset(LooseDataset):
    """One folder per episode, with pictures in sub-folders and a file of numbers."""

    format = "folders of pictures"

    def _find(self) -> list[Path]:
        return _episode_folders(self.root)

    def __getitem__(self, index: int) -> Episode:
        folder = self.episodes[index]
        uid = folder.relative_to(self.root).as_posix() if folder != self.root else folder.resolve().name
        with errors_name(str(folder)):
            content: dict[str, Any] = {}
            for path in _numbers_of(folder):
                found = read_annotation(path)
                content |= {path.stem if key == ARRAY else key: value for key, value in found.items()}
            cameras: dict[str, Camera] = {
                name: partial(open_pictures, folder, files) for name, files in _cameras_of(folder)
            }
            return self._episode(uid, folder, content, cameras, 0.0)


class JsonLinesDataset(LooseDataset):
    """A list of episodes or of frames, with paths to their videos or pictures."""

    format = "JSON lines with paths"

    def _find(self) -> list[list[dict[str, Any]]]:
        self.list = _lists(self.root)[0]
        with errors_name(str(self.list)):
            rows = list(_lines(self.list))
            self.keys = _path_keys(rows[0])
            self.of_frames = any(str(rows[0][key]).lower().endswith(PICTURES) for key in self.keys)
            return _grouped(rows) if self.of_frames else [[row] for row in rows]

    def __getitem__(self, index: int) -> Episode:
        rows = self.episodes[index]
        named = next((rows[0][key] for key in EPISODE if key in rows[0]), index)
        uid = f"{self.list.stem}/{named}"
        with errors_name(f"{self.list}, episode {named}"):
            files = {key: [self._inside(row.get(key)) for row in rows] for key in self.keys}
            if self.of_frames:
                content = {key: [row.get(key) for row in rows] for key in rows[0]}
                content |= {key: rows[0][key] for key in ("fps", *TEXTS) if key in rows[0]}
                cameras: dict[str, Camera] = {
                    key: partial(open_pictures, self.list, paths) for key, paths in files.items()
                }
                return self._episode(uid, self.list, content, cameras, 0.0)
            content = self._with_tables(rows[0])
            fps = probe_video(files[self.keys[0]][0]).fps
            videos: dict[str, Camera] = {
                key: partial(self._video, paths[0], content) for key, paths in files.items()
            }
            return self._episode(uid, self.list, content, videos, fps)

    def _with_tables(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Add the columns of the table files that a row names; an .npy file is a column named by its key."""
        content = dict(row)
        for key, value in row.items():
            if isinstance(value, str) and value.lower().endswith(TABLES):
                found = read_annotation(self._inside(value))
                content |= {key if name == ARRAY else name: column for name, column in found.items()}
        return content

    def _video(self, path: Path, row: Mapping[str, Any]) -> FrameReader:
        """Open a video with one frame per state, or one frame more than there are actions."""
        states = [row[key] for keys in STATES for key in keys if key in row]
        actions = [row[key] for keys in ACTIONS for key in keys if key in row]
        found = len(probe_video(path).pts)
        length = len(states[0]) if states else len(actions[0]) + 1 if actions else found
        return video_of_rows(path, found if found == length - 1 else length, self.verify)

    def _inside(self, value: Any) -> Path:
        folder = self.list.parent
        path = folder / value if isinstance(value, str) else folder
        if not path.resolve().is_relative_to(folder.resolve()) or not is_regular(path):
            raise ValueError(f"names {str(value)[:120]!r}, expected a file below {folder}")
        return path


def is_picture_folders(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether there are folders with pictures and a file of numbers."""
    return path.is_dir() and bool(_episode_folders(path))


def is_json_lines(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether there is a JSON lines file with paths to videos or pictures."""
    if not path.is_dir() or not _lists(path):
        return False
    try:
        first = next(_lines(_lists(path)[0]), {})
    except ValueError:
        return False
    return bool(_path_keys(first))


def _episode_folders(root: Path) -> list[Path]:
    inside = sorted(_folders(root), key=lambda folder: natural_order(folder.name))
    return [folder for folder in (root, *inside) if _numbers_of(folder) and any(_cameras_of(folder))]


def _folders(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]


def _numbers_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and is_regular(p))


def _cameras_of(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    for place in (folder, *sorted(_folders(folder))):
        files = [p for p in place.iterdir() if p.suffix.lower() in PICTURES and is_regular(p)]
        if len(files) > 1 and not any(word in place.name.lower() for word in NOT_RGB):
            yield (
                FRAMES if place == folder else place.name,
                sorted(files, key=lambda p: natural_order(p.name)),
            )


def _lists(root: Path) -> list[Path]:
    return sorted(p for p in root.glob("*.jsonl") if is_regular(p))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    check_range(path.stat().st_size, 1, MAX_LIST_BYTES, f"{path}: bytes")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            check_range(number, 0, MAX_LINES, "lines")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: line {number + 1} is not JSON ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}: line {number + 1} is {line[:40]!r}, expected an object")
            yield row


def _path_keys(row: Mapping[str, Any]) -> list[str]:
    """Keys that hold video paths, else picture paths; depth and masks are excluded."""
    for suffixes in (VIDEOS, PICTURES):
        named = [k for k, v in row.items() if isinstance(v, str) and v.lower().endswith(suffixes)]
        if found := [key for key in named if not any(word in key.lower() for word in NOT_RGB)]:
            return found
    return []


def _grouped(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group rows by the key that names their episode; without such a key all rows are one episode."""
    key = next((key for key in EPISODE if key in rows[0]), "")
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row.get(key)), []).append(row)
    return list(groups.values())


def _parts(word: str, numbers: Mapping[str, object]) -> tuple[str, ...]:
    """Columns such as action_0 or action.x, in the order of the file."""
    return tuple(key for key in numbers if re.fullmatch(rf"{word}s?[._/ ].+", key))


def _is_table(value: Any) -> bool:
    """Whether the value holds rows of numbers; CSV files store these as text."""
    if not isinstance(value, list | ndarray) or len(value) < 2:
        return False
    try:
        return np.asarray(value, dtype=np.float64).ndim >= 1
    except (TypeError, ValueError):
        return False


def _rate(content: Mapping[str, Any], otherwise: float) -> float:
    value = content.get("fps")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e4:
        return float(value)
    return otherwise
