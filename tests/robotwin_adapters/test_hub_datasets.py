"""Datasets by hub id, from a local hub cache alone."""

from pathlib import Path

import pytest

from robotwin_adapters.open_dataset import find_dataset, open_dataset
from tests.support.array_sets import walk


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """owner/arms in a hub cache, as a download leaves it."""
    import numpy as np

    commit = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "hub" / "datasets--owner--arms"
    folder = place / "snapshots" / commit
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    pictures = np.zeros((6, 32, 32, 3), np.uint8)
    np.savez(folder / "0.npz", image=pictures, action=walk(6, 2, 0), fps=np.array(10.0))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_set_in_the_cache_opens_by_its_id(cached: Path) -> None:
    assert find_dataset("owner/arms") == cached
    assert len(open_dataset("owner/arms")) == 1


def test_one_that_is_nowhere_is_named(cached: Path) -> None:
    with pytest.raises(ValueError, match="no dataset at owner/legs: no such folder, nor on the hub"):
        open_dataset("owner/legs")
    with pytest.raises(ValueError, match="no dataset at here/and/there: no such file or folder"):
        open_dataset("here/and/there")
