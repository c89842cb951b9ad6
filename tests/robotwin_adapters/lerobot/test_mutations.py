"""Broken LeRobot files (bytes flipped, cut, keys dropped): refused with a ValueError, or read with the truth.

Each batch runs in a process of its own, since a decoder that crashes or hangs would take the tests with it.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.lerobot.dataset import LerobotDataset
from robotwin_adapters.lerobot.write import write_lerobot
from tests.robotwin_adapters.lerobot.test_write import Episodes, smooth_episode
from tests.support.mutations import Outcome, faults_in, mutate_tree, run_apart, same_episode, texts_of

DATA = Path(__file__).parents[1] / "data"


def read_mutant(root: str, seed: int) -> tuple[Outcome, str]:
    """Break a copy of the dataset in one place and read all of it."""
    truth = [LerobotDataset(root)[index] for index in range(2)]
    copy = Path(f"{root}.mutant")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    what = mutate_tree(copy, np.random.default_rng(seed))
    try:
        source = LerobotDataset(copy)
        episodes = [source[index] for index in range(len(source))]
        same = len(episodes) == 2 and all(same_episode(a, b) for a, b in zip(episodes, truth, strict=True))
        return ("same" if same else "changed"), what
    except ValueError as error:
        named = str(copy) in str(error)
        return ("refused" if named else "unnamed"), f"{what}: {error}"


@pytest.fixture(params=["v21", "v30", "ours"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "set"
    if request.param == "ours":
        write_lerobot(Episodes((smooth_episode(0, 7, fps=10.0), smooth_episode(1, 9, fps=10.0))), root)
        return root
    return Path(shutil.copytree(DATA / f"lerobot_{request.param}", root))


AMOUNTS = [
    pytest.param(range(25), id="a_few"),
    pytest.param(range(1000, 1500), id="500", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("seeds", AMOUNTS)
def test_mutants_are_refused_by_name_or_read(dataset: Path, seeds: range) -> None:
    outcomes = run_apart(read_mutant, str(dataset), seeds)
    assert len(outcomes) == len(seeds)
    assert faults_in(outcomes) == []
    assert len(texts_of("refused", outcomes)) >= 0.3 * len(seeds)
    # LeRobot leaves no checksums: a few values and pictures change and still are a good file.
    is_sealed = "worldmodel" in (dataset / "meta/info.json").read_text()
    changed = texts_of("changed", outcomes)
    assert len(changed) <= (0.0 if is_sealed else 0.02) * len(seeds), changed
