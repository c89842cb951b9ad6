"""Datasets by hub id, from a local hub cache alone."""

from pathlib import Path

import pytest

from robotwin_adapters.open_dataset import find_dataset, open_dataset
from tests.support.array_sets import walk
from worldmodel.cli import main
from worldmodel.quickstart import run as quickstart
from worldmodel.quickstart.commands import Quickstart


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


def test_quickstart_takes_an_id_and_names_its_folder_after_it(
    cached: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Quickstart] = []
    monkeypatch.setattr(quickstart, "run", lambda one: asked.append(one) or "here")
    assert main(["quickstart", "owner/arms"]) == 0
    assert (asked[0].data, asked[0].name) == (str(cached), "arms")
    assert asked[0].out == Path("outputs/quickstart/arms")
    assert asked[0].minutes == 60
    assert "report: here" in capsys.readouterr().out


def test_quickstart_reads_what_the_cache_holds(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "owner/arms"]) == 2
    assert "1 episode(s): at least 3 are needed" in capsys.readouterr().err
