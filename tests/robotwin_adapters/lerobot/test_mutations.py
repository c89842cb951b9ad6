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
from tests.support.mutations import Outcome, mutate_tree, run_apart, same_episode

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


def check(root: Path, first_seed: int, count: int) -> None:
    is_sealed = "worldmodel" in (root / "meta/info.json").read_text()
    outcomes = run_apart(read_mutant, str(root), range(first_seed, first_seed + count))
    assert len(outcomes) == count
    wrong = [text for outcome, text in outcomes if outcome in ("unnamed", "crashed")]
    assert not wrong, "\n".join(wrong)
    changed = [text for outcome, text in outcomes if outcome == "changed"]
    # LeRobot leaves no checksums: a few values and pictures change and still are a good file.
    assert len(changed) <= (0.0 if is_sealed else 0.02) * count, "\n".join(changed)
    assert sum(outcome == "refused" for outcome, _ in outcomes) >= 0.3 * count


@pytest.fixture(params=["v21", "v30", "ours"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "set"
    if request.param == "ours":
        write_lerobot(Episodes((smooth_episode(0, 7, fps=10.0), smooth_episode(1, 9, fps=10.0))), root)
        return root
    return Path(shutil.copytree(DATA / f"lerobot_{request.param}", root))


def test_a_few_mutations(dataset: Path) -> None:
    check(dataset, first_seed=0, count=25)


@pytest.mark.slow
def test_500_mutations(dataset: Path) -> None:
    check(dataset, first_seed=1000, count=500)
