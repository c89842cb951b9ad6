"""Read-only access to the files of a dataset, in a folder or inside a zip archive.

Archives are never unpacked to disk: a member is read into memory on demand. Names that point outside the
folder, links, encryption, unusual compression and implausible sizes are refused before anything is read.
"""

import hashlib
import io
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import h5py

from robotwin_adapters.hdf5_names import check_names
from robotwin_adapters.hdf5_tree import open_hdf5
from worldmodel.checked import is_regular, read_bytes

MAX_MEMBERS = 500_000
MAX_EPISODE_BYTES = 4 << 30  # a generous limit, because files of a folder stay on disk
MAX_MEMBER_BYTES = 1 << 30  # a member of an archive is held in memory
MAX_RATIO = 200  # raw to compressed; episodes reach about 2, flat JSON about 30, deflate bombs 1000
RATIO_FREE_BYTES = 1 << 20  # below this size any compression ratio is accepted
CACHE_BYTES = 256 << 20  # unpacked members kept per process

TABLE_FREE_BYTES = 64 << 20  # the same for tables, whose constant columns compress without limit

Stamp = tuple[int, int]  # size and modification time of the file on disk


class FileStore(Protocol):
    """The files of a dataset; cheap to pickle, safe to use in forked and spawned workers."""

    def __hash__(self) -> int: ...

    def folders(self) -> tuple[str, ...]:
        """Names of the folders above the files, outermost first; an archive counts as one."""
        ...

    def names(self) -> Iterator[str]:
        """Every visible file, as a relative path with forward slashes."""
        ...

    def label(self, name: str) -> str:
        """The file's name in messages."""
        ...

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        ...

    def stamp(self, name: str) -> Stamp:
        """Size and modification time, which change with the file."""
        ...

    def size(self, name: str) -> int:
        """Bytes of the file."""
        ...

    def read(self, name: str, max_bytes: int) -> bytes:
        """The whole file."""
        ...

    def read_spans(self, name: str, spans: Sequence[tuple[int, int]], stamp: Stamp) -> list[bytes]:
        """The bytes at each (offset, length); refused if the file changed since `stamp`."""
        ...

    def open_hdf5(self, name: str) -> h5py.File:
        """The file as HDF5, to be closed by the caller."""
        ...


@contextmanager
def errors_name(source: str) -> Iterator[None]:
    """Turn any error in this block into one ValueError that names the source."""
    try:
        yield
    except (
        *(ValueError, OSError, KeyError, IndexError, RuntimeError, TypeError, AttributeError),
        *(OverflowError, MemoryError, EOFError, SyntaxError),
        *(zlib.error, zipfile.BadZipFile, struct.error),
    ) as error:
        message = str(error) or type(error).__name__
        raise ValueError(message if source in message else f"{source}: {message}") from error


def walk_tree(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """os.walk in a fixed order over visible folders and regular files; FIFOs and devices are skipped.

    Links are followed, since large datasets are often linked together. Each real folder is visited once, a
    link to a folder above `root` is not followed, and a tree of more than MAX_MEMBERS files is refused.
    """
    above = {Path(os.path.realpath(root)), *Path(os.path.realpath(root)).parents}
    seen: set[Path] = set()
    count = 0
    for folder, folders, files in os.walk(root, followlinks=True):
        real = Path(os.path.realpath(folder))
        if real in seen or (real in above and seen):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        regular = sorted(name for name in files if is_regular(Path(folder) / name))
        count += len(files)
        if count > MAX_MEMBERS:
            raise ValueError(
                f"{root}: more than {MAX_MEMBERS} files below it (at {folder}); name the dataset's folder"
            )
        yield Path(folder), folders, regular


def tree_stamp(root: Path) -> str:
    """A digest of names, sizes and times, which changes when a file below is added, removed or changed."""
    digest = hashlib.sha256()
    if root.is_file():
        digest.update(f"{_stamp(os.stat(root))}".encode())
    for folder, _, files in walk_tree(root):
        place = folder.relative_to(root).as_posix()
        for name in files:
            digest.update(f"{place}/{name} {_stamp(os.stat(folder / name))}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class FolderFiles:
    """Files under a folder; hidden ones are skipped."""

    root: Path

    def folders(self) -> tuple[str, ...]:
        return self.root.resolve().parts[1:]

    def names(self) -> Iterator[str]:
        for folder, _, files in walk_tree(self.root):
            relative = folder.relative_to(self.root)
            yield from ((relative / name).as_posix() for name in sorted(files) if not name.startswith("."))

    def label(self, name: str) -> str:
        return str(self.root / name)

    def exists(self, name: str) -> bool:
        path = self.root / name
        if not path.is_file() and path.is_symlink():  # as git-annex and DVC create them
            raise ValueError(f"{name} is a link to something that is not here; fetch the data first")
        return path.is_file()

    def stamp(self, name: str) -> Stamp:
        return _stamp(os.stat(self.root / name))

    def size(self, name: str) -> int:
        return self.stamp(name)[0]

    def read(self, name: str, max_bytes: int) -> bytes:
        return read_bytes(self.root / name, max_bytes)

    def read_spans(self, name: str, spans: Sequence[tuple[int, int]], stamp: Stamp) -> list[bytes]:
        descriptor = os.open(self.root / name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb", buffering=0) as file:
            if _stamp(os.fstat(descriptor)) != stamp:
                raise ValueError("the file changed since the episode was opened")
            buffers = []
            for offset, length in spans:
                file.seek(offset)
                buffers.append(file.read(length))
        return buffers

    def open_hdf5(self, name: str) -> h5py.File:
        if self.stamp(name)[0] > MAX_EPISODE_BYTES:
            raise ValueError(f"larger than {MAX_EPISODE_BYTES} bytes")
        return open_hdf5(self.root / name)


@dataclass(frozen=True)
class ZipFiles:
    """Members of one zip archive."""

    path: Path

    def folders(self) -> tuple[str, ...]:
        return self.path.resolve().with_suffix("").parts[1:]

    def names(self) -> Iterator[str]:
        archive = _open_archive(self.path, self.stamp(""), os.getpid())
        visible = (
            info.filename
            for info in archive.infolist()
            if not info.is_dir() and not any(part.startswith(".") for part in info.filename.split("/"))
        )
        yield from sorted(visible)

    def label(self, name: str) -> str:
        return f"{self.path}:{name}"

    def exists(self, name: str) -> bool:
        return name in _open_archive(self.path, self.stamp(name), os.getpid()).NameToInfo

    def stamp(self, name: str) -> Stamp:
        return _stamp(os.stat(self.path))

    def size(self, name: str) -> int:
        return _open_archive(self.path, self.stamp(name), os.getpid()).getinfo(name).file_size

    def read(self, name: str, max_bytes: int) -> bytes:
        return _member(self.path, self.stamp(name), name, max_bytes)

    def read_spans(self, name: str, spans: Sequence[tuple[int, int]], stamp: Stamp) -> list[bytes]:
        if self.stamp(name) != stamp:
            raise ValueError("the archive changed since the episode was opened")
        data = _member(self.path, stamp, name, MAX_MEMBER_BYTES)
        return [data[offset : offset + length] for offset, length in spans]

    def open_hdf5(self, name: str) -> h5py.File:
        data = self.read(name, MAX_MEMBER_BYTES)
        check_names(data)
        return h5py.File(io.BytesIO(data), "r")


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns


# The key includes the process id: a forked worker must not share a file position with its parent.
@lru_cache(maxsize=4)
def _open_archive(path: Path, stamp: Stamp, pid: int) -> zipfile.ZipFile:
    with errors_name(str(path)):
        archive = zipfile.ZipFile(path)
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise ValueError(f"the archive has {len(members)} members, expected at most {MAX_MEMBERS}")
        if len({info.filename for info in members}) != len(members):
            raise ValueError("the archive holds two members of the same name")
        for info in members:
            _check_member(info)
        return archive


def _check_member(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    if name.startswith("/") or "\\" in name or ":" in name or "\0" in name or ".." in name.split("/"):
        raise ValueError(f"member {name!r} has a name that could leave the folder")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise ValueError(f"member {name!r} is a symbolic link")
    if info.flag_bits & 0x1:
        raise ValueError(f"member {name!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"member {name!r}: expected stored or deflated, got method {info.compress_type}")
    check_expansion(f"member {name!r}", info.compress_size, info.file_size, free=RATIO_FREE_BYTES)


def check_expansion(label: str, packed: int, unpacked: int, *, free: int) -> None:
    """Refuse data that decompress to far more than their size; `free` bytes are always allowed."""
    budget = min(MAX_EPISODE_BYTES, max(free, MAX_RATIO * packed))
    if unpacked > budget:
        raise ValueError(f"{label} claims {unpacked} bytes from {packed}; at most {budget} are unpacked")


class _MemberCache:
    """The most recently read members, up to CACHE_BYTES, so that clips of one episode unpack it once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Path, Stamp, str], bytes] = OrderedDict()

    def get(self, key: tuple[Path, Stamp, str]) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[Path, Stamp, str], data: bytes) -> None:
        with self._lock:
            self._kept[key] = data
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > CACHE_BYTES:
                self._kept.popitem(last=False)


_CACHE = _MemberCache()


def _member(path: Path, stamp: Stamp, name: str, max_bytes: int) -> bytes:
    key = (path, stamp, name)
    if (data := _CACHE.get(key)) is None:
        archive = _open_archive(path, stamp, os.getpid())
        info = archive.getinfo(name)
        if info.file_size > max_bytes:
            raise ValueError(f"claims {info.file_size} bytes, expected at most {max_bytes}")
        with archive.open(info) as stream:
            # zipfile stops at the declared size and checks the CRC there, even if the stream is longer.
            data = stream.read(info.file_size)
        if len(data) != info.file_size:
            raise ValueError(f"holds {len(data)} bytes, its header says {info.file_size}")
        _CACHE.put(key, data)
    return data
