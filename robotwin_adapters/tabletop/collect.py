"""Collects episodes into a RoboTwin 2.0 folder: parallel, resumable, same bytes for any number of workers.

Seeds count up from the first; episode N is the N-th seed whose episode is kept. Workers run ahead, but their
results are stored in seed order. `collect.json` records the progress; a rerun relies on it alone.
"""

import json
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mujoco
from tqdm import tqdm

from robotwin_adapters.robotwin.write import (
    CameraRecord,
    RobotwinEpisode,
    write_robotwin_episode,
    write_robotwin_index,
)
from robotwin_adapters.tabletop.control import SAVE_EVERY
from robotwin_adapters.tabletop.record import RecordingConfig, SimulatedEpisode, record_episode
from robotwin_adapters.tabletop.scene import TIMESTEP
from worldmodel.files import write_json

STATE_FILE = "collect.json"
SAVE_SECONDS = 5.0  # between saves; a killed process repeats what it did since the last one
MAX_FAILURES = 100  # seeds in a row; more means that the expert cannot do this task with this robot


@dataclass
class Progress:
    """The episodes that a folder holds so far."""

    settings: dict[str, Any]  # a rerun must have the same ones
    next_seed: int
    tried: int = 0  # seeds run so far
    scenes: list[dict[str, Any]] = field(default_factory=list)  # entries of scene_info.json
    instructions: list[dict[str, list[str]]] = field(default_factory=list)


@dataclass(frozen=True)
class CollectSummary:
    """What a folder holds after collecting."""

    folder: Path
    episodes: int
    tried: int  # seeds that were run to get them
    successes: int  # among the episodes kept


@contextmanager
def recording_pool(workers: int) -> Iterator[Executor]:
    """Worker processes that record episodes; with one worker, the current process."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if workers == 1:
        yield _ThisProcess()
        return
    pool = _Workers(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise ChildProcessError("a worker process died; is there enough memory?") from error
    finally:
        pool.shutdown(cancel_futures=True)


def collect_all(
    out: Path, configs: Sequence[RecordingConfig], *, episodes: int, seed: int, workers: int
) -> list[CollectSummary]:
    """Collect one folder per config: `out` itself for a single one, else out/<task>/<embodiment>."""
    summaries = []
    with recording_pool(workers) as pool:
        for config in configs:
            folder = out if len(configs) == 1 else out / config.task / config.embodiment
            ahead = 1 if workers == 1 else 2 * workers
            summaries.append(
                collect(folder, config, episodes=episodes, seed=seed, pool=pool, run_ahead=ahead)
            )
    return summaries


def collect(
    folder: Path,
    config: RecordingConfig,
    *,
    episodes: int,
    seed: int,
    pool: Executor,
    run_ahead: int = 1,
) -> CollectSummary:
    """Fill `folder` up to `episodes` episodes, resuming a run with the same settings."""
    if episodes < 1 or seed < 0:
        raise ValueError(f"expected episodes >= 1 and seed >= 0, got {episodes} and {seed}")
    progress = _open_folder(folder, config, seed)
    save_at = time.monotonic() + SAVE_SECONDS
    try:
        with (
            closing(_recordings(config, progress.next_seed, pool, run_ahead)) as recordings,
            _progress_bar(config, progress, episodes) as bar,
            _remembered_interrupts() as interrupts,
        ):
            while len(progress.scenes) < episodes and not interrupts:
                _take(folder, progress, next(recordings))
                bar.update(len(progress.scenes) - bar.n)
                bar.set_postfix_str(f"{_percent(progress)} of {progress.tried} seeds kept")
                if (now := time.monotonic()) > save_at:
                    _save(folder, progress)
                    # The index grows with the episodes; its cost is kept below a tenth
                    # of the time.
                    save_at = time.monotonic() + max(SAVE_SECONDS, 10 * (time.monotonic() - now))
    finally:
        _save(folder, progress)
    successes = sum(scene["success"] for scene in progress.scenes)
    return CollectSummary(folder, len(progress.scenes), progress.tried, successes)


def _recordings(
    config: RecordingConfig, seed: int, pool: Executor, run_ahead: int
) -> Generator[tuple[int, SimulatedEpisode | None], None, None]:
    """Run seed after seed and yield results in order, with up to `run_ahead` in progress."""
    under_way: deque[tuple[int, Future[SimulatedEpisode | None]]] = deque()
    try:
        while True:
            while len(under_way) < run_ahead:
                under_way.append((seed, pool.submit(record_episode, config, seed)))
                seed += 1
            first, future = under_way.popleft()
            yield first, future.result()
    finally:
        for _, future in under_way:
            future.cancel()


def _take(folder: Path, progress: Progress, result: tuple[int, SimulatedEpisode | None]) -> None:
    """Write one result, if it was kept, and advance to the next seed."""
    seed, recording = result
    if recording is not None:
        write_robotwin_episode(folder, len(progress.scenes), _as_robotwin(recording))
        progress.scenes.append(recording.scene_info)
        progress.instructions.append(recording.instructions)
    progress.next_seed, progress.tried = seed + 1, progress.tried + 1
    last_kept = progress.scenes[-1]["seed"] if progress.scenes else progress.settings["seed"] - 1
    if seed - last_kept >= MAX_FAILURES:
        raise ValueError(f"{folder}: the expert failed on {MAX_FAILURES} seeds in a row, up to seed {seed}")


def _as_robotwin(recording: SimulatedEpisode) -> RobotwinEpisode:
    return RobotwinEpisode(
        left_arm=recording.left_arm,
        left_gripper=recording.left_gripper,
        right_arm=recording.right_arm,
        right_gripper=recording.right_gripper,
        left_endpose=recording.left_endpose,
        right_endpose=recording.right_endpose,
        left_commanded_endpose=recording.left_commanded_endpose,
        right_commanded_endpose=recording.right_commanded_endpose,
        cameras={name: CameraRecord(**vars(seen)) for name, seen in recording.cameras.items()},
    )


def _open_folder(folder: Path, config: RecordingConfig, seed: int) -> Progress:
    settings = _settings(config, seed)
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / STATE_FILE
    if not state.exists():
        if any(folder.iterdir()):
            raise ValueError(f"{folder}: holds files but no {STATE_FILE}; choose an empty or new folder")
        progress = Progress(settings, next_seed=seed)
        _save(folder, progress)
        return progress
    progress = _read_state(state)
    _check_same(folder, progress.settings, settings)
    for leftover in folder.glob("**/.*.writing"):
        leftover.unlink()
    return _cut_to_files(folder, progress)


def _settings(config: RecordingConfig, seed: int) -> dict[str, Any]:
    """All settings that affect the output; lists instead of tuples, because JSON returns lists."""
    chosen = asdict(config)
    if not config.hold:
        del chosen["hold"]  # older folders lack this setting and can be resumed
    return {
        **chosen,
        "cameras": list(config.cameras),
        "seed": seed,
        "commanded_poses": True,  # older folders lack these poses and must not be mixed with new ones
        "fps": 1.0 / (TIMESTEP * SAVE_EVERY),
        "mujoco": mujoco.__version__,
    }


def _read_state(path: Path) -> Progress:
    try:
        return Progress(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a state file of worldmodel collect ({error})") from error


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    differences = [
        f"{key} was {before.get(key)!r}, now {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if differences:
        raise ValueError(
            f"{folder}: was collected with other settings ({'; '.join(differences)}); choose another folder"
        )


def _cut_to_files(folder: Path, progress: Progress) -> Progress:
    """Go back to the first episode whose file is missing; its seed is run again."""
    for index, scene in enumerate(progress.scenes):
        if not (folder / "data" / f"episode{index}.hdf5").exists():
            lost = progress.next_seed - scene["seed"]
            return Progress(
                progress.settings,
                scene["seed"],
                progress.tried - lost,
                progress.scenes[:index],
                progress.instructions[:index],
            )
    return progress


def _save(folder: Path, progress: Progress) -> None:
    """Write the index files of the format, then the state file."""
    seeds = [scene["seed"] for scene in progress.scenes]
    if seeds:
        write_robotwin_index(
            folder, seeds=seeds, scene_info=progress.scenes, instructions=progress.instructions
        )
    write_json(folder / STATE_FILE, asdict(progress), indent=None)


def _progress_bar(config: RecordingConfig, progress: Progress, episodes: int) -> "tqdm[Any]":
    return tqdm(
        total=episodes,
        initial=min(len(progress.scenes), episodes),
        desc=f"{config.task} {config.embodiment}",
        unit="episode",
        dynamic_ncols=True,
    )


def _percent(progress: Progress) -> str:
    return f"{100 * len(progress.scenes) / max(progress.tried, 1):.0f}%"


class _Workers(ProcessPoolExecutor):
    """Worker processes that ignore Ctrl-C; their parent handles it.

    Ctrl-C reaches every process of the terminal. If a worker died while it sends a recording, the parent
    would block forever; so workers finish their current episodes, and the parent saves and reports it. The
    signal is blocked before a worker starts, so that it is ignored from the beginning.
    """

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(function, *arguments, **options)
        finally:  # a pending Ctrl-C is delivered now
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _remembered_interrupts() -> Iterator[list[int]]:
    """Defer Ctrl-C to the end of the block; a second one is raised at once.

    Raised at once, it could hit a destructor, where Python only prints the exception and continues.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


class _ThisProcess(Executor):
    """An executor that runs each call immediately in the current process."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **options))
        return future
