"""Pairs of predicted and true videos in two folders, whoever made them.

A video is a file (.mp4, .avi, .mkv, .mov, .webm), an .npz with one array [t H W 3], or a folder of pictures
(.png, .jpg) in the order of their names. Videos of one name (path in the folder without its ending) belong
together. Where names differ, a table pairs them: CSV with the columns `predicted`, `truth` and, if wanted,
`episode`, or JSON with a list of such objects. Only what a table lists is scored.
"""

import csv
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from worldmodel.checked import build, is_regular, parse_json, read_text
from worldmodel.data.video import open_video, probe_video
from worldmodel.types import to_unit_range

VIDEOS, PICTURES = (".mp4", ".avi", ".mkv", ".mov", ".webm"), (".png", ".jpg", ".jpeg")
MAX_BYTES = 1 << 32  # of one video in memory
CLIP_FRAMES = 16  # IRASim's clips: every whole 16 frames of an episode, from its first
CLIP_NAME = re.compile(r"(?P<episode>.+?)(?:_(?P<camera>\d+))?_(?P<start>\d+)")
WHOLE_VIDEO_NAMES = ("{episode}_{camera}", "{episode}/{camera}/rgb", "{episode}/rgb", "{episode}")


@dataclass(frozen=True)
class Listed:
    """A row of a table of pairs: paths in the two folders, with or without their endings."""

    predicted: str
    truth: str
    episode: str = ""  # videos of one episode are averaged first; empty: each is its own


@dataclass(frozen=True)
class Pair:
    """What is compared: a whole predicted video with a true one, or with a part of it."""

    name: str
    episode: str
    predicted: Path
    truth: Path
    start: int | None = None  # first frame of the part; none: the whole video


def find_pairs(predicted: Path, truth: Path, table: str = "", *, cut_clips: bool = False) -> list[Pair]:
    """All pairs, by name or as the table says; what has no partner is named.

    `cut_clips`: predictions called EPISODE_CAMERA_START may also be clips of whole true episodes.
    """
    made, real = dict(_videos(predicted)), dict(_videos(truth))
    if table:
        return [_listed(row, made, real, table) for row in _read_table(Path(table))]
    pairs = [_pair(name, path, real, cut_clips) for name, path in made.items()]
    if alone := [name for name, pair in zip(made, pairs, strict=True) if pair is None]:
        raise ValueError(
            f"{predicted}: {len(alone)} of {len(made)} videos have no video of their name in {truth}, the "
            f"first is {alone[0]!r} (there: {', '.join(map(repr, [*real][:3]))}); set pairs=FILE.csv"
        )
    return [pair for pair in pairs if pair is not None]


def missing_clips(pairs: Sequence[Pair]) -> list[str]:
    """Clips of IRASim's list that no prediction is there for, of the episodes that were cut."""
    found: dict[tuple[str, Path], set[int]] = {}
    for pair in pairs:
        if pair.start is not None:
            found.setdefault((pair.name.rpartition("_")[0], pair.truth), set()).add(pair.start)
    return [
        f"{stem}_{start}"
        for (stem, path), starts in found.items()
        for start in range(0, num_frames(path) - CLIP_FRAMES + 1, CLIP_FRAMES)
        if start not in starts
    ]


def read_frames(path: Path, start: int = 0, count: int | None = None) -> Float[Tensor, "t 3 H W"]:
    """Frames [start, start + count) in [0, 1]; count None: all that follow."""
    if path.is_dir():
        frames = _pictures(path, start, count)
    elif path.suffix == ".npz":
        frames = _array(path)[start : None if count is None else start + count]
    else:
        video = open_video(path, verify=False)
        frames = video.read(range(start, len(video) if count is None else min(start + count, len(video))))
    if not len(frames):
        raise ValueError(f"{path}: no frames from {start} on")
    return to_unit_range(torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2))


def num_frames(path: Path) -> int:
    """Frames of a video, without decoding them."""
    if path.is_dir():
        return len(_files(path, PICTURES))
    return len(_array(path)) if path.suffix == ".npz" else len(probe_video(path).pts)


def _videos(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of videos, arrays (.npz) or folders of pictures")
    found = [path for path in sorted(folder.rglob("*")) if _is_video(path)]
    if not found:
        raise ValueError(f"{folder}: no videos ({', '.join(VIDEOS)}), .npz or folders of pictures in it")
    for path in found:
        name = path.relative_to(folder)
        yield (name if path.is_dir() else name.with_suffix("")).as_posix(), path


def _is_video(path: Path) -> bool:
    if path.is_dir():
        return bool(_files(path, PICTURES))
    return path.suffix.lower() in (*VIDEOS, ".npz") and is_regular(path)


def _files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in endings and is_regular(path))


def _pair(name: str, path: Path, real: Mapping[str, Path], cut_clips: bool) -> Pair | None:
    if name in real:
        return Pair(name, name, path, real[name])
    match = CLIP_NAME.fullmatch(name) if cut_clips else None
    if match is None:
        return None
    parts = {key: value or "0" for key, value in match.groupdict().items()}
    known = [real[one] for form in WHOLE_VIDEO_NAMES if (one := form.format(**parts)) in real]
    return Pair(name, parts["episode"], path, known[0], int(parts["start"])) if known else None


def _read_table(path: Path) -> list[Listed]:
    text = read_text(path)
    rows: Any = (
        parse_json(text, str(path)) if path.suffix == ".json" else list(csv.DictReader(io.StringIO(text)))
    )
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: expected a list of objects with predicted and truth")
    return [build(Listed, row, f"{path}, row {number}") for number, row in enumerate(rows, 1)]


def _listed(row: Listed, made: Mapping[str, Path], real: Mapping[str, Path], table: str) -> Pair:
    return Pair(
        row.predicted,
        row.episode or row.predicted,
        _named(row.predicted, made, table, "predicted"),
        _named(row.truth, real, table, "truth"),
    )


def _named(name: str, known: Mapping[str, Path], table: str, side: str) -> Path:
    for key in (name, name.rpartition(".")[0]):
        if key in known:
            return known[key]
    raise ValueError(f"{table}: {side} {name!r} is not in its folder, which holds {[*known][:3]} ...")


def _pictures(folder: Path, start: int, count: int | None) -> np.ndarray:
    files = _files(folder, PICTURES)[start : None if count is None else start + count]
    frames = []
    for path in files:
        try:
            with Image.open(path, formats=("PNG", "JPEG")) as picture:
                frames.append(np.asarray(picture.convert("RGB")))
        except (OSError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path}: cannot be read as a picture ({error})") from error
        if frames[-1].shape != frames[0].shape:
            raise ValueError(f"{path} has {frames[-1].shape}, the pictures before it {frames[0].shape}")
    return np.stack(frames) if frames else np.zeros((0, 1, 1, 3), np.uint8)


def _array(path: Path) -> np.ndarray:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
                raise ValueError(f"{path}: more than {MAX_BYTES >> 30} GiB unpacked")
        with np.load(path, allow_pickle=False) as arrays:
            name = "frames" if "frames" in arrays.files or len(arrays.files) != 1 else arrays.files[0]
            frames: np.ndarray = arrays[name]
    except (OSError, zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(f"{path}: expected one array, or one called frames ({error})") from error
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype not in (np.uint8, np.float32, np.float64):
        raise ValueError(
            f"{path}: expected uint8, or float in [0, 1], [t H W 3]; got {frames.dtype} {frames.shape}"
        )
    if frames.dtype != np.uint8:
        if not (np.isfinite(frames).all() and frames.min() >= 0 and frames.max() <= 1):
            raise ValueError(f"{path}: float frames must lie in [0, 1]")
        frames = frames.astype(np.float32)
    return frames
