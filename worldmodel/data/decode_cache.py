"""A cache of files whose videos and pictures were decoded without errors, which are not checked again.

The cache is a JSON lines file in the cache folder. A line holds path, size, time and SHA-256 of a file, and
which part of it was decoded. A path with unchanged size and time needs no hashing. Otherwise the content is
hashed, so a file that was moved, copied or touched is still found. Lines are appended atomically, so that
several processes may write; incomplete lines are skipped.
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from tqdm import tqdm

Verify = Literal["never", "once", "always"]
MAX_THREADS = 8
_lock = threading.Lock()


@runtime_checkable
class Checkable(Protocol):
    """Frames that can be checked for decoding errors."""

    def check(self, *, again: bool = False) -> None:
        """Raise ValueError if a frame cannot be decoded; `again` ignores the cache of earlier checks."""
        ...


def cache_folder() -> Path:
    """Folder for data that can be recomputed: WORLDMODEL_CACHE, else in the user's cache folder."""
    if given := os.environ.get("WORLDMODEL_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worldmodel"


def ensure_sound(path: str, part: str, check: Callable[[], object], *, again: bool = False) -> None:
    """Run the check of this part of a file, unless the same content has passed it before."""
    status = os.stat(path)
    stamp = (os.path.abspath(path), status.st_size, status.st_mtime_ns, part)
    memory = _memory(str(cache_folder()))
    if not again and stamp in memory.stamps:
        return
    digest = _content_hash(path, status.st_size, status.st_mtime_ns)
    if again or (digest, part) not in memory.contents:
        check()
    memory.add(stamp, digest)


def check_frames(readers: Sequence[object], verify: Verify) -> dict[int, str]:
    """Check many readers in parallel, with a progress bar; returns index and error of each broken one."""
    numbers = [number for number, reader in enumerate(readers) if isinstance(reader, Checkable)]
    if verify == "never" or not numbers:
        return {}

    def wrong(number: int) -> str:
        reader = readers[number]
        assert isinstance(reader, Checkable), reader
        try:
            reader.check(again=verify == "always")
        except (ValueError, OSError) as error:
            return str(error)
        return ""

    # Decoding and hashing release Python's lock.
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        found = pool.map(wrong, numbers)
        shown = tqdm(found, "checking videos", len(numbers), unit="episode", disable=None, leave=False)
        return {number: error for number, error in zip(numbers, shown, strict=True) if error}


class _Memory:
    """The entries of one cache file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamps: set[tuple[str, int, int, str]] = set()
        self.contents: set[tuple[str, str]] = set()
        with contextlib.suppress(OSError), path.open(encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError):
                    name, size, time, part, digest = json.loads(line)
                    self._note((name, size, time, part), digest)

    def add(self, stamp: tuple[str, int, int, str], digest: str) -> None:
        """Add an entry in memory and, if the folder is writable, to the file."""
        with _lock:
            self._note(stamp, digest)
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([*stamp, digest]) + "\n")

    def _note(self, stamp: tuple[str, int, int, str], digest: str) -> None:
        self.stamps.add(stamp)
        self.contents.add((digest, stamp[3]))


@lru_cache(maxsize=4)
def _memory(folder: str) -> _Memory:
    return _Memory(Path(folder) / "verified.jsonl")


@lru_cache(maxsize=4096)
def _content_hash(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
