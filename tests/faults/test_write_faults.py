"""Every writer fails at every step: nothing half-written under a final name, the old content stays.

Two layers make the faults. A limit on the size of files stops C libraries (FFmpeg, HDF5, Arrow, safetensors)
in the middle of a write, as a full disk does. And the steps of Python (sync, rename, new folder) fail one by
one.
"""

import atexit
import errno
import hashlib
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.tools.convert import convert_dataset
from tests.support.robotwin_sets import write_robotwin_set
from tests.support.tiny_mddiff import tiny_mddiff
from tests.support.tiny_wan import tiny_wan
from worldmodel.cli_errors import exit_code
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset
from worldmodel.data.latents import LatentCache
from worldmodel.data.synthetic import synthetic_source
from worldmodel.data.video import write_video
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.evaluation.jsonl_store import RecordLines
from worldmodel.files import atomic_file, write_json, write_tensors
from worldmodel.locator.model import Locator, LocatorConfig
from worldmodel.models.backbone import build_wan
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.report.page import Page, Section, Text, write_pages
from worldmodel.training.loop.checkpoints import CheckpointStore

pytestmark = pytest.mark.faults
SOURCE = synthetic_source(num_episodes=2, num_frames=9, size=(32, 32), embodiments=("a",), action_dim=6)
CLIPS = ClipConfig(num_frames=9, height=32, width=32)
STEPS = ("fsync", "replace", "mkdir", "rename", "open")


def write_arrays(folder: Path) -> None:
    with atomic_file(folder / "numbers.npy") as temporary, temporary.open("wb") as file:
        np.save(file, np.arange(50_000))


def write_frames(folder: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    write_video(folder / "clip.mp4", iter(frames), 10)


def write_records(folder: Path) -> None:
    RecordLines(folder / "clips.jsonl", {"a": 1}).add("one", {"value": list(range(2000))})


def save_backbone(folder: Path) -> None:
    write_tensors(folder / "model.safetensors", build_wan(tiny_wan()).state_dict())


@lru_cache
def robotwin_source() -> Path:
    """One set for all: robot and task are read from the names of its folders."""
    folder = Path(tempfile.mkdtemp(prefix="robotwin_source_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_robotwin_set(folder, joints=6, episodes=1, frames=4)
    return folder


def convert_to_robotwin(folder: Path) -> None:
    convert_dataset(open_dataset(robotwin_source()), folder / "robotwin", "robotwin")


LEROBOT = Path(__file__).parents[1] / "robotwin_adapters/data/lerobot_v21"
PAGE = Page("Title", "Lead", (Section("Numbers", (Text("word " * 2000),)),))


@lru_cache
def world_model() -> WorldModel:
    torch.manual_seed(0)
    vae = CausalAutoencoder(height=32, width=32, hidden=8, num_blocks=1, scale_factor_spatial=8)
    config = WorldModelConfig(regime="acg", backbone=tiny_wan())
    clips = build_clip_dataset([SOURCE], config=CLIPS)
    return WorldModel.build(config, InputSpec(9, 32, 32, SOURCE[0].fps), clips.normalizer, vae=vae)


def save_checkpoint(folder: Path) -> None:
    store = CheckpointStore(folder / "checkpoints", num_kept=2)
    store.prepare()
    store.save(1, {"weights": {"a": torch.arange(3000.0)}}, {"seed": 0})


def build_latents(folder: Path) -> None:
    index = build_clip_dataset([SOURCE], config=CLIPS).index
    cache = LatentCache(str(folder / "latents"), "autoencoder")
    cache.build(index, lambda frames: torch.zeros(len(frames), 4, 3, 16, 16), batch_size=2)


WRITERS: dict[str, Callable[[Path], object]] = {
    "json": lambda folder: write_json(folder / "a.json", list(range(5000))),
    "arrays": write_arrays,
    "tensors": save_backbone,
    "video": write_frames,
    "records": write_records,
    "robotwin": lambda folder: write_robotwin_set(folder / "set", joints=6, episodes=1, frames=4),
    "convert_lerobot": lambda folder: convert_dataset(SOURCE, folder / "lerobot", "lerobot"),
    "convert_robotwin": convert_to_robotwin,
    "copy_lerobot": lambda folder: convert_dataset(open_dataset(LEROBOT), folder / "copied", "lerobot"),
    "world_model": lambda folder: world_model().save_pretrained(folder / "model"),
    "mddiff": lambda folder: tiny_mddiff().save_pretrained(folder / "mddiff"),
    "checkpoint": save_checkpoint,
    "page": lambda folder: write_pages(PAGE, folder),
    "latents": build_latents,
    "locator": lambda folder: Locator(LocatorConfig(channels=8)).save_pretrained(folder / "locator", {}),
}


def run_apart(write: Callable[[Path], object], folder: Path, prepare: Callable[[], None]) -> int:
    """The exit code of a process that writes under a fault: 0 done, 1 refused as it should be, 70 a crash."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 70
    try:
        torch.set_num_threads(1)
        prepare()
        write(folder)
        code = 0
    except Exception as error:
        code = 1 if exit_code(error) is not None else 70
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def contents(folder: Path) -> dict[str, str]:
    """By name; the lines of a record file are whole up to some line, which is its own way to be whole."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".lock", ".jsonl")
    }


def check_nothing_is_half_written(folder: Path, whole: dict[str, str]) -> None:
    found = contents(folder)
    hidden = [name for name in found if "writing" in name]
    assert not hidden, hidden
    assert all(whole.get(name) == digest for name, digest in found.items()), found


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A name, and what the writer leaves when nothing goes wrong."""
    (tmp_path / "whole").mkdir()
    robotwin_source()
    assert run_apart(WRITERS[request.param], tmp_path / "whole", lambda: None) == 0
    return request.param, contents(tmp_path / "whole")


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limits of file size")
def test_a_full_disk_in_the_middle_of_a_write(writer: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    name, whole = writer
    for limit in (0, 100, 1000, 5000, 20_000):
        folder = tmp_path / f"limit{limit}"
        folder.mkdir()

        def limited(limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        assert run_apart(WRITERS[name], folder, limited) in (0, 1), (name, limit)
        check_nothing_is_half_written(folder, whole)
        # The next start finds nothing in its way.
        assert contents(folder) == whole or run_apart(WRITERS[name], folder, lambda: None) == 0
        assert contents(folder) == whole


@pytest.mark.parametrize("step", STEPS)
def test_each_step_fails_once(writer: tuple[str, dict[str, str]], step: str, tmp_path: Path) -> None:
    name, whole = writer
    for number in range(12):
        folder = tmp_path / f"{step}{number}"
        folder.mkdir()
        code = run_apart(WRITERS[name], folder, partial(fail_at, step, number, folder))
        assert code in (0, 1), (name, step, number)
        check_nothing_is_half_written(folder, whole)
        if code == 0:
            break
        # After the last rename all is there, and only the disk may not know it yet.
        assert contents(folder) == whole or run_apart(WRITERS[name], folder, lambda: None) == 0
        assert contents(folder) == whole


def fail_at(step: str, number: int, folder: Path) -> None:
    """From now on the call of this number of an os function that touches the folder fails."""
    real, calls = getattr(os, step), iter(range(10**6))

    def failing(*arguments: object, **options: object) -> object:
        is_ours = step == "fsync" or any(str(folder) in str(argument) for argument in arguments)
        if is_ours and next(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))
        return real(*arguments, **options)

    setattr(os, step, failing)


def test_a_clock_that_jumps_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real, jumps = time.time, iter([0, -1e6, 1e9, -1e9, 5, 0, 0, 0, 1e6] * 1000)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    for name in ("json", "records", "convert_robotwin"):
        (tmp_path / name).mkdir()
        WRITERS[name](tmp_path / name)
    lines = RecordLines(tmp_path / "records/clips.jsonl", {"a": 1})
    assert "one" in lines


class DyingItems(torch.utils.data.Dataset):
    """An item whose loader process is killed, as the system does when memory runs out."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> int:
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number


def test_a_dead_loader_is_no_fault_of_the_program(tmp_path: Path) -> None:
    def load(folder: Path) -> None:
        list(torch.utils.data.DataLoader(DyingItems(), num_workers=1))

    assert run_apart(load, tmp_path, lambda: None) == 1


class HungryItems(torch.utils.data.Dataset):
    """An item for which the loader process gets no memory."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> int:
        if number == 2:
            resource.setrlimit(resource.RLIMIT_AS, (64 << 20, 64 << 20))
            return int(np.ones(1 << 30).sum())
        return number


def test_a_loader_without_memory_ends_the_command_in_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def load(folder: Path) -> None:
        list(torch.utils.data.DataLoader(HungryItems(), num_workers=1))

    assert run_apart(load, tmp_path, lambda: None) == 1
    assert "memory" in capfd.readouterr().err.lower()
