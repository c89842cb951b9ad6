"""One NPZ file per episode with pictures and numbers inside, as many small simulators and Dreamer write them.

The CRC-32 of each member reveals damaged data. Nothing is unpickled. Dreamer's files (with `is_first`) store
with each picture the action that led to it, the first one zero: these actions are shifted by one.
"""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, Numbers, build_episode, first_present
from robotwin_adapters.arrays.frames import ArrayFrames
from robotwin_adapters.arrays.hdf5_files import natural_order
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.arrays.pictures import frame_size, looks_like_pictures, to_rgb
from robotwin_adapters.hdf5_tree import stamp_of
from robotwin_adapters.storage import Stamp, check_expansion, errors_name, is_regular
from worldmodel.types import Episode

ACTIONS = (("action",), ("actions",))
STATES = (("state",), ("states",), ("proprio",), ("observation.state",), ("qpos",))
TEXTS = ("language_instruction", "instruction", "text", "task")
ASSUMED_FPS = 10.0
FPS_NOTE = f"the files name no rate: {ASSUMED_FPS:g} frames per second assumed (mapping: fps)"
SHIFTED_NOTE = "action[t] led to frame t (is_first is there and action[0] is zero): shifted by one"
FREE_BYTES = 1 << 30  # below this size any compression ratio is accepted, as for synthetic pictures
CACHED_ARRAYS = 4  # unpacked arrays kept per process, because a compressed array can only be read as a whole


@dataclass(frozen=True)
class Header:
    """Type and shape of an array in the archive."""

    shape: tuple[int, ...]
    dtype: np.dtype


def is_npz_frames(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether this is an NPZ file with pictures in it, or a folder of such files."""
    files = npz_files(path)
    try:
        return bool(files) and any(_are_pictures(*entry) for entry in npz_headers(files[0]).items())
    except ValueError:
        return False


def npz_files(path: Path) -> list[Path]:
    """The file, or the NPZ files directly in the folder, in order of their numbers."""
    if path.is_file():
        return [path] if path.suffix == ".npz" else []
    files = (p for p in path.iterdir() if p.suffix == ".npz" and is_regular(p)) if path.is_dir() else ()
    return sorted((p for p in files if not p.name.startswith(".")), key=lambda p: natural_order(p.name))


class NpzDataset(ArrayDataset):
    """The episodes of a folder of NPZ files."""

    format = "NPZ with frames"

    def _find(self) -> list[Path]:
        return npz_files(self.root)

    def __getitem__(self, index: int) -> Episode:
        path = self.episodes[index]
        headers = npz_headers(path)
        with errors_name(str(path)):
            numbers = {key: partial(_array, str(path), stamp_of(path), key) for key in headers}
            pictures = {
                key: partial(self._frames, path, key, header)
                for key, header in headers.items()
                if _are_pictures(key, header)
            }
            keys, notes = self._keys(numbers, headers)
            arrays = NamedArrays(
                path.stem,
                str(path),
                _aligned(numbers, notes),
                pictures,
                self._texts(numbers, headers),
                notes,
                is_whole_file=True,
            )
            return build_episode(arrays, keys, self.camera)

    def _keys(self, numbers: Numbers, headers: Mapping[str, Header]) -> tuple[KeyMapping, tuple[str, ...]]:
        fps = float(numbers["fps"]()) if "fps" in headers and headers["fps"].shape == () else 0.0
        defaults = KeyMapping(
            action_keys=first_present(ACTIONS, headers),
            state_keys=first_present(STATES, headers),
            fps=fps or ASSUMED_FPS,
            embodiment=self.name,
        )
        notes = () if fps or self.mapping.fps else (FPS_NOTE,)
        keys = self.mapping.over(defaults)
        return keys, (*notes, SHIFTED_NOTE) if _led_to_frames(numbers, keys.action_keys) else notes

    def _frames(self, path: Path, key: str, header: Header) -> ArrayFrames:
        source = NpzPictures(str(path), stamp_of(path), key)
        upside_down = bool(self.mapping.upside_down)
        return ArrayFrames(source, header.shape[0], frame_size(header.shape), upside_down=upside_down)

    def _texts(self, numbers: Numbers, headers: Mapping[str, Header]) -> tuple[str, ...]:
        for key in (self.mapping.text_key, *TEXTS):
            if key in headers and headers[key].dtype.kind in "US":
                values = numbers[key]().reshape(-1)[:1].astype(str)
                return tuple(text for text in values.tolist() if text.strip())
        return ()


@dataclass(frozen=True)
class NpzPictures:
    """The pictures of one array."""

    path: str
    stamp: Stamp
    key: str

    def load(self, rows: Int64[ndarray, " n"]) -> UInt8[ndarray, "n H W 3"]:
        """The pictures at these rows."""
        if stamp_of(self.path) != self.stamp:
            raise ValueError("the file changed since the episode was opened")
        return to_rgb(_array(self.path, self.stamp, self.key)[rows])


def _are_pictures(key: str, header: Header) -> bool:
    return looks_like_pictures(key, header.shape, header.dtype)


def _led_to_frames(numbers: Numbers, action_keys: tuple[str, ...]) -> bool:
    if "is_first" not in numbers or not action_keys:
        return False
    return all(not np.any(numbers[key]()[:1]) for key in action_keys if key in numbers)


def _aligned(numbers: Numbers, notes: tuple[str, ...]) -> Numbers:
    """The arrays; actions lose their first row where notes say each is stored with the frame it led to."""
    if SHIFTED_NOTE not in notes:
        return numbers
    moved = {key: partial(_without_first, numbers[key]) for (key,) in ACTIONS if key in numbers}
    return {**numbers, **moved}


def _without_first(read: Callable[[], ndarray]) -> ndarray:
    return read()[1:]


def npz_headers(path: Path) -> dict[str, Header]:
    """Type and shape of the arrays in an archive, without unpacking them."""
    return _headers(str(path), stamp_of(path))


@lru_cache(maxsize=4096)
def _headers(path: str, stamp: Stamp) -> dict[str, Header]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            packed = sum(member.compress_size for member in members)
            check_expansion("the archive", packed, sum(m.file_size for m in members), free=FREE_BYTES)
            if strange := [m.filename for m in members if not m.filename.endswith(".npy")]:
                raise ValueError(f"expected .npy members alone, got {strange[0]!r}")
            return {m.filename.removesuffix(".npy"): _header(archive, m.filename) for m in members}
    except Exception as error:  # zip and npy parsers raise many exception types on damaged files
        raise ValueError(f"{path}: cannot be read as npz ({error})") from error


def _header(archive: zipfile.ZipFile, name: str) -> Header:
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    return Header(shape, dtype)


@lru_cache(maxsize=CACHED_ARRAYS)
def _array(path: str, stamp: Stamp, key: str) -> ndarray:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            values = arrays[key]
    except Exception as error:
        raise ValueError(f"{path}: {key!r} cannot be read ({error})") from error
    values.flags.writeable = False
    return values
