"""Files and folders that appear whole or not at all, and tensors in safetensors files.

Everything is written beside its place under a hidden name, synced to the disk and renamed. A reader or a
crash never sees half of it, and an error leaves what was there before. What a killed process left behind is
removed when something is next written to the same folder.
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
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # folders may be shared by several
_LEFTOVER = re.compile(r"\..*\.([0-9a-f]{8})\.(\d{1,9})(?:-(\d+))?\.writing")
_CLEANED: set[tuple[int, Path]] = set()


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A path to write to that takes the place of `path` in the end; on an error nothing is left of it.

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
        temporary.chmod(rights)  # safetensors lets the owner alone read its files
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _hidden(path: Path) -> Path:
    """The name under which something is written: it tells the machine, the process and when that began."""
    process = os.getpid()
    return path.with_name(f".{path.name}.{_MACHINE}.{process}-{_begun(process)}.writing")


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes of this machine left half-written in a folder; looks once a process."""
    if (os.getpid(), folder) in _CLEANED:
        return
    _CLEANED.add((os.getpid(), folder))
    with os.scandir(folder) as entries:
        found = [(entry.name, _LEFTOVER.fullmatch(entry.name)) for entry in entries]
    for name, match in found:
        if match and match[1] == _MACHINE and not _is_alive(int(match[2]), match[3]):
            path = folder / name
            with suppress(OSError):  # another process may have removed it, or it is not ours
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_alive(process: int, begun: str | None) -> bool:
    """Whether it still runs; numbers are used again, so another one may bear its number by now."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return begun is None or begun == _begun(process)


def _begun(process: int) -> str:
    """Clock ticks from the start of the system to that of a process; 0 if it has ended, or nobody tells."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "0"
    return "0" if fields[0] in "ZX" else fields[19]


def check_apart(output: str | Path, *inputs: str | Path) -> None:
    """Refuse to write into what is read: an output that is one of the inputs, or lies in one.

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
    """Replace a text file in one step."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> None:
    """Replace a JSON file in one step."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill that appears at `path` when it is complete; `path` must not exist."""
    path = Path(path)
    if os.path.lexists(path):  # a link to nothing cannot be replaced by a folder either
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
    """A folder to fill that takes the place of `folder` in the end; on an error the old one stays.

    A folder that holds something but no file called `marker` is not one of ours and is not overwritten.
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
    """Whoever may read a folder may read its files: safetensors lets their owner alone."""
    rights = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(rights)


def _put_back(old: Path, folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames."""
    if old.exists() and not folder.exists():
        os.replace(old, folder)


class FolderLock:
    """Keeps other processes from writing to a folder, until it is deleted or its process ends.

    The lock lies on the folder itself, so that no file is left behind. File systems that know no such locks
    go without.
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
            # Forked processes hold the same lock, and are not the ones to open it.
            if os.getpid() == self.owner:
                with suppress(OSError):
                    fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)


_HELD: WeakValueDictionary[tuple[int, Path], FolderLock] = WeakValueDictionary()


def lock_folder(folder: Path, wait_s: float | None = None) -> FolderLock:
    """The lock of a folder, held as long as somebody in this process keeps it; ValueError if another does."""
    key = os.getpid(), folder.resolve()
    held = _HELD.get(key)
    if held is None:
        held = _HELD[key] = FolderLock(folder, LOCK_WAIT_S if wait_s is None else wait_s)
    return held


def sync_file(path: Path) -> None:
    """Wait until the disk has the file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has the folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """One safetensors file, whole or not at all."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary:
        try:
            save_file(contiguous, temporary, metadata=dict(metadata) if metadata else {"format": "pt"})
        except SafetensorError as error:  # safetensors wraps I/O errors, a full disk above all
            code = errno.ENOSPC if "No space left" in str(error) else errno.EIO
            raise OSError(code, str(error)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file; a missing or damaged one is named, and one with NaN or infinity too."""
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
    """Load the weights of a module, all of them and nothing else.

    Weights whose names begin with one of `optional` may be in the file alone, and are left there, or in the
    module alone, and stay as they are. Those of `longer` (name -> axis) may go on beyond what the module has.
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


def _at_least(shape: Sequence[int], found: Sequence[int], axis: int) -> list[int]:
    """The shape, as long along the axis as what was found, if that is longer."""
    longest = max(shape[axis], found[axis]) if len(found) == len(shape) else shape[axis]
    return [longest if number == axis else size for number, size in enumerate(shape)]


def read_module(make: Callable[[], M], path: Path, where: str) -> M:
    """A module with its weights; what `make` would build is compared with the file before it is built."""
    check_headers([path], skeleton(make, where).state_dict())
    module = make()
    module.load_state_dict(read_tensors(path))
    return module


def fingerprint(folder: Path, suffixes: tuple[str, ...] = (".safetensors", ".json", ".yaml")) -> str:
    """Of all weights and descriptions in a folder, wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes:
            digest.update(path.relative_to(folder).as_posix().encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
