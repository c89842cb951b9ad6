"""Breaks files on purpose, and runs readers on them in a process that may die."""

import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from worldmodel.types import Episode

Outcome = Literal["same", "changed", "refused", "unnamed", "crashed"]
SECONDS = 60  # a reader that takes longer hangs


def mutate_tree(root: Path, generator: np.random.Generator) -> str:
    """Break one file below the folder in one way; says what was done."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "stats.json")
    path = files[generator.integers(len(files))]
    content = bytearray(path.read_bytes())
    ways = ["flip", "noise", "cut", "empty"] + (["drop", "drop"] if path.suffix == ".json" else [])
    way = ways[generator.integers(len(ways))]
    if way == "flip":
        content[generator.integers(len(content))] ^= 1 << int(generator.integers(8))
    elif way == "noise":
        start = int(generator.integers(len(content)))
        content[start : start + 16] = generator.bytes(len(content[start : start + 16]))
    elif way in ("cut", "empty"):
        content = content[: int(generator.integers(len(content))) if way == "cut" else 0]
    else:
        content = bytearray(json.dumps(_drop_key(json.loads(content), generator)).encode())
    path.write_bytes(content)
    return f"{way} in {path.relative_to(root)}"


def _drop_key(content: dict | list, generator: np.random.Generator) -> dict | list:
    """Without one key, somewhere at the first or second level; of a list, in its first entry."""
    if isinstance(content, list):
        return [_drop_key(content[0], generator), *content[1:]]
    keys = [(key,) for key in content]
    keys += [(key, inner) for key, value in content.items() if isinstance(value, dict) for inner in value]
    outer, *inner = keys[generator.integers(len(keys))]
    if inner:
        return {**content, outer: {k: v for k, v in content[outer].items() if k != inner[0]}}
    return {key: value for key, value in content.items() if key != outer}


def same_episode(a: Episode, b: Episode) -> bool:
    """Whether numbers and pictures are the same to the last bit, camera by camera of the first."""
    states = [episode.robot_states for episode in (a, b)]
    numbers = np.array_equal(a.robot_actions, b.robot_actions) and a.fps == b.fps
    numbers = numbers and (states[0] is None or states[1] is None or np.array_equal(*states))
    return numbers and all(
        name in b.frames
        and np.array_equal(reader.read(range(len(reader))), b.frames[name].read(range(len(reader))))
        for name, reader in a.frames.items()
    )


def run_apart(
    read: Callable[[str, int], tuple[Outcome, str]], root: str, seeds: Iterable[int]
) -> list[tuple[Outcome, str]]:
    """The outcome for every seed; a crash or a hang of the reader is an outcome too."""
    outcomes: list[tuple[Outcome, str]] = []
    pool = None
    for seed in seeds:
        pool = pool or ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        future = pool.submit(read, root, seed)
        try:
            outcomes.append(future.result(timeout=SECONDS))
        except (BrokenProcessPool, TimeoutError) as error:
            outcomes.append(("crashed", f"seed {seed}: {type(error).__name__}"))
            pool.shutdown(wait=False, cancel_futures=True)
            pool = None
        except Exception as error:
            outcomes.append(("crashed", f"seed {seed}: {type(error).__name__}: {error}"))
    if pool is not None:
        pool.shutdown()
    return outcomes


def read_all(path: Path) -> list[tuple[Episode, dict[str, np.ndarray]]]:
    """Every episode of a data set with the pictures of all its cameras."""
    from robotwin_adapters.open_dataset import open_dataset

    source = open_dataset(path)
    episodes = [source[index] for index in range(len(source))]
    return [(e, {name: r.read(range(len(r))) for name, r in e.frames.items()}) for e in episodes]


def read_mutant(root: str, seed: int) -> tuple[Outcome, str]:
    """Break a copy of the data set in one place and read all of it; "changed": other numbers, not pixels."""
    copy = Path(f"{root}.mutant") / Path(root).name
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(root, copy)
    what = mutate_tree(copy, np.random.default_rng(seed))
    truth = _truth(root)
    try:
        found = [episode for episode, _ in read_all(copy)]
    except ValueError as error:
        return ("refused" if str(copy.parent) in str(error) else "unnamed"), f"{what}: {error}"
    same = len(found) == len(truth) and all(
        np.array_equal(e.robot_actions, truth[e.uid].robot_actions) and e.fps == truth[e.uid].fps
        if e.uid in truth
        else False
        for e in found
    )
    return ("same" if same else "changed"), what


@lru_cache(maxsize=1)
def _truth(root: str) -> dict[str, Episode]:
    return {episode.uid: episode for episode, _ in read_all(Path(root))}


def faults_in(outcomes: list[tuple[Outcome, str]]) -> list[str]:
    """What was neither read nor refused by the name of its file."""
    return [text for outcome, text in outcomes if outcome in ("unnamed", "crashed")]


def texts_of(wanted: Outcome, outcomes: list[tuple[Outcome, str]]) -> list[str]:
    """What was done to the inputs of one outcome."""
    return [text for outcome, text in outcomes if outcome == wanted]
