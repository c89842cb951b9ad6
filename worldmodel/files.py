"""Atomic writing of files and folders, and reading of tensors from safetensors files.

Everything is written to a hidden name in the same folder, synced to disk and renamed. Readers never get a
partial file, even after a crash, and an error keeps the old content. Leftovers of a killed process are
removed at the next write to the same folder.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from worldmodel.tensors import check_finite, check_headers, read_headers, skeleton

M = TypeVar("M", bound=nn.Module)
log = logging.getLogger(__name__)
LOCK_WAIT_S = 20.0  # loaders of a killed run end a few seconds after it
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # several machines may share a folder
_LEFTOVER = re.compile(r"\..*\.([0-9a-f]{8})\.(\d{1,9})(?:-(\d+))?\.writing")
_CLEANED: set[tuple[int, Path]] = set()


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success; on an error it is deleted.

    Example:
        >>> with atomic_file("numbers.npy") as temporary:
        ...     with temporary.open("wb") as file:
        ...         np.save(file, numbers)
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    temporary = _hidden(path)
    try:
        temporary.touch()
        rights = temporary.stat().st_mode & 0o777
        yield temporary
        temporary.chmod(rights)  # safetensors makes its files readable by their owner only
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _hidden(path: Path) -> Path:
    """The temporary name: it contains the machine, the process id and the process's start time."""
    process = os.getpid()
    return path.with_name(f".{path.name}.{_MACHINE}.{process}-{_begun(process)}.writing")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes of this machine; runs once per process and folder."""
    if (os.getpid(), folder) in _CLEANED:
        return
    _CLEANED.add((os.getpid(), folder))
    with os.scandir(folder) as entries:
        found = [(entry.name, _LEFTOVER.fullmatch(entry.name)) for entry in entries]
    for name, match in found:
        if match and match[1] == _MACHINE and not _is_alive(int(match[2]), match[3]):
            path = folder / name
            with suppress(OSError):  # another process may have removed it, or we lack permission
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_alive(process: int, begun: str | None) -> bool:
    """Whether the process still runs; process ids are reused, so the start time is compared too."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return begun is None or begun == _begun(process)


def _begun(process: int) -> str:
    """Start time of a process in clock ticks since boot; 0 if it has exited or /proc is unavailable."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "0"
    return "0" if fields[0] in "ZX" else fields[19]


def check_apart(output: str | Path, *inputs: str | Path) -> None:
    """Refuse an output that is one of the inputs, or lies inside one.

    Example:
        >>> check_apart("data/finch/pictures", "data/finch")
        Traceback (most recent call last):
        ...
        ValueError: data/finch/pictures lies in data/finch, which is read; name another place to write to
    """
    place = Path(os.path.realpath(output))
    for given in inputs:
        if given and place.is_relative_to(os.path.realpath(given)):
            raise ValueError(f"{output} lies in {given}, which is read; name another place to write to")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a folder to fill, renamed to `path` when complete; `path` must not exist."""
    path = Path(path)
    if os.path.lexists(path):  # a dangling link cannot be replaced by a folder either
        raise ValueError(f"{path}: exists already; name a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    building = _hidden(path)
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir()
        yield building
        _rename_to_new(building, path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _rename_to_new(building: Path, path: Path) -> None:
    try:
        os.replace(building, path)
    except OSError as error:
        if not os.path.lexists(path):
            raise
        raise ValueError(f"{path}: another process wrote it meanwhile; name a new folder") from error


@contextmanager
def replaced_folder(folder: Path, marker: str) -> Iterator[Path]:
    """Yield a folder to fill that replaces `folder` on success; on an error the old one stays.

    A non-empty folder without a file called `marker` was not written by us and is not overwritten.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / marker).is_file():
        raise ValueError(f"{folder} holds something else (no {marker}); it is not overwritten")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent)
    new, old = _hidden(folder), folder.with_name(f".{folder.name}.replaced")
    _put_back(old, folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        _share(new)
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
    finally:
        _put_back(old, folder)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _share(folder: Path) -> None:
    """Give files the folder's permissions: safetensors makes them readable by their owner only."""
    rights = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(rights)


def _put_back(old: Path, folder: Path) -> None:
    """Undo a replacement that was interrupted between its two renames."""
    if old.exists() and not folder.exists():
        os.replace(old, folder)


class FolderLock:
    """Keeps other processes from writing to a folder, until it is deleted or its process ends.

    The lock is on the folder itself, so it needs no lock file. On file systems without such locks it does
    nothing.
    """

    def __init__(self, folder: Path, wait_s: float) -> None:
        self.owner, self.descriptor = os.getpid(), os.open(folder, os.O_RDONLY)
        deadline, is_told = time.monotonic() + wait_s, False
        while not self._is_taken():
            if time.monotonic() > deadline:
                raise ValueError(
                    f"{folder}: another process writes to it; wait for its end, or name another output"
                )
            if not is_told:
                log.warning("waiting for another process that writes to %s", folder)
                is_told = True
            time.sleep(0.2)

    def _is_taken(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("no locks here (%s): start one run at a time", error)
        return True

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            # Forked processes inherit the lock and must not release it.
            if os.getpid() == self.owner:
                with suppress(OSError):
                    fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)


_HELD: WeakValueDictionary[tuple[int, Path], FolderLock] = WeakValueDictionary()


def lock_folder(folder: Path, wait_s: float | None = None) -> FolderLock:
    """The lock of a folder, held as long as this process references it.

    ValueError if another process has it.
    """
    key = os.getpid(), folder.resolve()
    held = _HELD.get(key)
    if held is None:
        held = _HELD[key] = FolderLock(folder, LOCK_WAIT_S if wait_s is None else wait_s)
    return held


def sync_file(path: Path) -> None:
    """Flush a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush a folder's directory entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write one safetensors file atomically."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary:
        try:
            save_file(contiguous, temporary, metadata=dict(metadata) if metadata else {"format": "pt"})
        except SafetensorError as error:  # safetensors wraps I/O errors such as a full disk
            code = errno.ENOSPC if "No space left" in str(error) else errno.EIO
            raise OSError(code, str(error)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file; missing or damaged files and values of NaN or infinity are errors."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    check_finite(tensors, str(path))
    return tensors


def read_into(
    module: nn.Module, path: Path, *, optional: tuple[str, ...] = (), longer: Mapping[str, int] | None = None
) -> None:
    """Load the weights of a module; names must match exactly.

    Weights whose names begin with one of `optional` may be only in the file, where they are ignored, or only
    in the module, where they stay unchanged. Those of `longer` (name -> axis) may be longer in the file than
    in the module.
    """
    found = read_headers([path])
    expected = {
        name: tensor
        for name, tensor in module.state_dict().items()
        if name in found or not name.startswith(optional)
    }
    cuts = {name: (axis, expected[name].shape[axis]) for name, axis in (longer or {}).items()}
    stored = {
        name: torch.empty(_at_least(tensor.shape, found[name].shape, cuts[name][0]), device="meta")
        if name in cuts and name in found
        else tensor
        for name, tensor in expected.items()
    }
    check_headers([path], stored, ignored=optional)
    tensors = {name: tensor for name, tensor in read_tensors(path).items() if name in expected}
    for name, (axis, length) in cuts.items():
        tensors[name] = tensors[name].narrow(axis, 0, length)
    module.load_state_dict(tensors, strict=not optional)


def read_beneath(module: nn.Module, path: Path, prefix: str) -> None:
    """Load the weights that a file holds under names with this prefix; without any, the module stays."""
    found = set(read_headers([path]))
    others = {name for name in found if not name.startswith(prefix)}
    if found == others:
        return
    expected = {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}
    check_headers([path], expected, ignored=others)
    tensors = read_tensors(path)
    module.load_state_dict({name: tensors[prefix + name] for name in module.state_dict()})


def _at_least(shape: Sequence[int], found: Sequence[int], axis: int) -> list[int]:
    """The shape, extended along the axis to that of the file if that is longer."""
    longest = max(shape[axis], found[axis]) if len(found) == len(shape) else shape[axis]
    return [longest if number == axis else size for number, size in enumerate(shape)]


def read_module(make: Callable[[], M], path: Path, where: str) -> M:
    """Build a module and load its weights; its shapes are compared with the file before it is built."""
    check_headers([path], skeleton(make, where).state_dict())
    module = make()
    module.load_state_dict(read_tensors(path))
    return module


def fingerprint(folder: Path, suffixes: tuple[str, ...] = (".safetensors", ".json", ".yaml")) -> str:
    """Digest of all weights and descriptions in a folder, independent of its location."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes:
            digest.update(path.relative_to(folder).as_posix().encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
