"""Checkpoints as folders, written atomically with checksums; safetensors and JSON only.

checkpoints/step_00000200/{weights,optimizer,ema}.safetensors
checkpoints/step_00000200/{weights,optimizer,ema}/             of an fsdp2 run: a file for each process
checkpoints/step_00000200/state.json   step, counters, data identity; size and CRC-32 of each tensor file
checkpoints/latest, checkpoints/best   one line each: the name of a step folder
"""

import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import ProcessGroup

from worldmodel.checked import check_object, check_type, read_json
from worldmodel.cli_errors import CommandError
from worldmodel.files import FolderLock, lock_folder, sync_folder, write_json, write_tensors, write_text
from worldmodel.tensors import check_finite
from worldmodel.training.loop.distributed import agreed
from worldmodel.training.loop.shards import read_shards, shard_shapes, write_shards

log = logging.getLogger(__name__)

STEP_PREFIX = "step_"
TEMPORARY_PREFIX = ".writing_"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its counters, and its tensors by file and name."""

    path: Path
    state: dict[str, Any]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The whole tensors of one file, on the CPU; empty if the checkpoint has no such file."""
        if self.has_shards(name):
            whole = {key: torch.empty_like(x, device="cpu") for key, x in self.described(name).items()}
            read_shards(self.path / name, whole)
            return whole
        file = self.path / f"{name}.safetensors"
        return load_file(file) if file.exists() else {}

    def has_shards(self, name: str) -> bool:
        """Whether several processes wrote it, a file each."""
        return (self.path / name).is_dir()

    def described(self, name: str) -> dict[str, Tensor]:
        """The tensors of a file, as `tensors` reads them; for a sharded file, empty ones of its shapes."""
        return shard_shapes(self.path / name) if self.has_shards(name) else self.tensors(name)


class CheckpointStore:
    """The checkpoints of one run. Only the main process writes, unless a group has a shard each."""

    def __init__(self, folder: Path, num_kept: int, group: ProcessGroup | None = None) -> None:
        self.folder = folder
        self.num_kept = num_kept
        self.group = group
        self.lock: FolderLock | None = None  # held to keep other processes from writing here

    def prepare(self) -> None:
        """Create the folder, check that it is writable, and remove leftovers of a killed run."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = lock_folder(self.folder)
            for leftover in self.folder.glob(f"{TEMPORARY_PREFIX}*"):
                shutil.rmtree(leftover)
            write_text(self.folder / "probe", "")
        except OSError as error:
            raise ValueError(f"checkpoints cannot be written to {self.folder}: {error}") from error
        finally:
            with suppress(OSError):
                (self.folder / "probe").unlink(missing_ok=True)

    def save(self, step: int, files: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
        """Write one checkpoint; on an error the older ones stay and no partial one remains.

        All processes of a group must call it: the first one finishes what they wrote.
        """
        final = self.folder / f"{STEP_PREFIX}{step:08d}"
        temporary = self.folder / f"{TEMPORARY_PREFIX}{final.name}"
        if self.group is None:
            shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(exist_ok=True)
            for name, tensors in files.items():
                if tensors and self.group is not None:
                    write_shards(temporary / name, tensors, self.group)
                elif tensors:
                    write_tensors(temporary / f"{name}.safetensors", tensors)
            if self.group is None or self.group.rank() == 0:
                self._finish(temporary, final, {**state, "step": step})
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return final

    def _finish(self, temporary: Path, final: Path, state: Mapping[str, Any]) -> None:
        written = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = {str(path.relative_to(temporary)): _fingerprint(path) for path in written}
        write_json(temporary / "state.json", {**state, "files": manifest}, indent=None)
        for folder in {path.parent for path in written} | {temporary}:
            sync_folder(folder)
        if final.exists():  # a run resumed from an older checkpoint reaches this step again
            shutil.rmtree(final)
        os.replace(temporary, final)
        sync_folder(self.folder)
        write_text(self.folder / "latest", final.name + "\n")
        self._remove_old()

    def mark_best(self, step: int) -> None:
        """Point `best` at this step's checkpoint, if it exists."""
        name = f"{STEP_PREFIX}{step:08d}"
        if name != self.best() and (self.folder / name).is_dir():
            write_text(self.folder / "best", name + "\n")

    def best(self) -> str | None:
        """Name of the step folder that `best` points at."""
        return self._pointer("best")

    def last_good(self) -> Checkpoint | None:
        """The newest intact checkpoint; damaged ones are skipped with a warning."""
        for path in self._newest_first():
            try:
                return verify(path)
            except ValueError as error:
                log.warning("checkpoint passed over: %s", error)
        return None

    def _newest_first(self) -> Iterator[Path]:
        yield from sorted(self.folder.glob(f"{STEP_PREFIX}*"), reverse=True)

    def _pointer(self, name: str) -> str | None:
        file = self.folder / name
        return file.read_text().strip() if file.exists() else None

    def _remove_old(self) -> None:
        kept = {path.name for path in list(self._newest_first())[: self.num_kept]} | {self.best()}
        for path in self._newest_first():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def open_store(
    folder: Path, accelerator: Accelerator, resume: bool, num_kept: int, group: ProcessGroup | None = None
) -> CheckpointStore:
    """The checkpoints of a run's folder; an existing run is only continued, never overwritten.

    `fit` calls it too, but a script should call it before it spends time or writes anything.
    """
    store = CheckpointStore(folder / "checkpoints", num_kept, group)
    problem = None
    if accelerator.is_main_process:
        try:
            store.prepare()
            if not resume and store.last_good() is not None:
                problem = (
                    f"{store.folder} already holds a run: pass --resume to continue it, or use another folder"
                )
        except ValueError as error:
            problem = str(error)
    if problem := agreed(problem, accelerator):
        raise ValueError(problem)
    return store


def verify(path: Path) -> Checkpoint:
    """Open a checkpoint after checking size and checksum of each file; ValueError describes any damage."""
    try:
        state = read_json(path / "state.json")
        expected = check_object(state.get("files"), "files")
        check_type(state.get("step"), int, "step")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: state.json is missing or damaged ({error})") from error
    for name, fingerprint in expected.items():
        file = path / name
        if not file.is_file():
            raise ValueError(f"{path}: {name} is missing")
        if (found := _fingerprint(file)) != fingerprint:
            raise ValueError(f"{path}: {name} is damaged: expected {fingerprint}, found {found}")
    return Checkpoint(path, state)


def _fingerprint(path: Path) -> list[int]:
    """[size in bytes, CRC-32]: detects a truncated or damaged file, but does not protect against attacks."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return [path.stat().st_size, checksum]


def export_finished(
    store: CheckpointStore, metrics: Mapping[str, float], export: Callable[[Checkpoint, Path], None]
) -> None:
    """Write the results of a finished run next to its checkpoints: metrics.json, best and last model.

    The last model is written last: its existence marks a complete export.
    """
    output = store.folder.parent
    if metrics:
        write_json(output / "metrics.json", metrics)
    last = store.last_good()
    assert last is not None, "a finished run has a checkpoint"
    if best := store.best():
        export(verify(store.folder / best), output / "best")
    _check_converged(last)
    export(last, output / "model")


def _check_converged(checkpoint: Checkpoint) -> None:
    """Refuse to export weights that are not finite, because loading would refuse them too."""
    try:
        check_finite(checkpoint.tensors("weights"), str(checkpoint.path))
    except ValueError as error:
        raise CommandError(f"{error}: the training diverged; lower fit.optim.lr") from error
