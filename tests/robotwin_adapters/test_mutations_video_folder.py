"""Broken videos and annotations: refused with a ValueError, or read with the truth; no crash, no hang."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.video_folder import VideoFolderDataset
from tests.robotwin_adapters.test_video_folder import write_ctrl_world
from tests.support.mutations import Outcome, mutate_tree, run_apart, same_episode


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


def check(root: Path, first_seed: int, count: int) -> None:
    for name in ("1", "2"):
        write_ctrl_world(root, name)
    outcomes = run_apart(read_mutant, str(root), range(first_seed, first_seed + count))
    wrong = [text for outcome, text in outcomes if outcome in ("unnamed", "crashed")]
    assert not wrong, "\n".join(wrong)
    changed = [text for outcome, text in outcomes if outcome == "changed"]
    # A flipped digit of a JSON number is another good number: nothing in such a file could tell.
    assert all(".json" in text for text in changed), "\n".join(changed)
    assert len(changed) <= 0.02 * count, "\n".join(changed)
    assert sum(outcome == "refused" for outcome, _ in outcomes) >= 0.3 * count


def test_a_few_mutations(tmp_path: Path) -> None:
    check(tmp_path / "set", first_seed=0, count=40)


@pytest.mark.slow
def test_500_mutations(tmp_path: Path) -> None:
    check(tmp_path / "set", first_seed=1000, count=500)
