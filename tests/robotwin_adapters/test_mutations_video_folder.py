"""Broken videos and annotations: refused with a ValueError, or read with the truth; no crash, no hang."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.video_folder import VideoFolderDataset
from tests.robotwin_adapters.test_video_folder import write_ctrl_world
from tests.support.mutations import Outcome, faults_in, mutate_tree, run_apart, same_episode, texts_of


def read_mutant(root: str, seed: int) -> tuple[Outcome, str]:
    """Break a copy of the dataset in one place and read all of it."""
    truth = [VideoFolderDataset(root)[index] for index in range(2)]
    copy = Path(f"{root}.mutant")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    what = mutate_tree(copy, np.random.default_rng(seed))
    try:
        source = VideoFolderDataset(copy)
        episodes = [source[index] for index in range(len(source))]
        same = len(episodes) == 2 and all(same_episode(a, b) for a, b in zip(episodes, truth, strict=True))
        return ("same" if same else "changed"), what
    except ValueError as error:
        return ("refused" if str(copy) in str(error) else "unnamed"), f"{what}: {error}"


AMOUNTS = [
    pytest.param(range(40), id="a_few"),
    pytest.param(range(1000, 1500), id="500", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("seeds", AMOUNTS)
def test_mutants_are_refused_by_name_or_read(seeds: range, tmp_path: Path) -> None:
    for name in ("1", "2"):
        write_ctrl_world(tmp_path / "set", name)
    outcomes = run_apart(read_mutant, str(tmp_path / "set"), seeds)
    assert len(outcomes) == len(seeds)
    assert faults_in(outcomes) == []
    assert len(texts_of("refused", outcomes)) >= 0.3 * len(seeds)
    # A flipped digit of a JSON number is another good number: nothing in such a file could tell.
    changed = texts_of("changed", outcomes)
    assert all(".json" in text for text in changed), changed
    assert len(changed) <= 0.02 * len(seeds), changed
