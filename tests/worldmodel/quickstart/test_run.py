"""One command from files to a report: the whole journey (slow), and what ends it at once."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.array_sets import walk
from worldmodel.cli import main


def write_moving_boxes(folder: Path, count: int = 5, frames: int = 40) -> Path:
    """A box that goes where the action says."""
    folder.mkdir()
    for number in range(count):
        actions = walk(frames, 2, number).clip(-1, 1)
        pictures = np.full((frames, 64, 64, 3), 60, np.uint8)
        for picture, (x, y) in zip(pictures, (24 + 16 * actions).round().astype(int), strict=True):
            picture[y : y + 12, x : x + 12] = (220, 40, 40)
        np.savez(folder / f"{number}.npz", image=pictures, action=actions, fps=np.array(10.0))
    return folder


def test_a_folder_that_exists_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_moving_boxes(tmp_path / "boxes", 1, 6)
    (tmp_path / "out").mkdir()
    assert main(["quickstart", str(data), "--out", str(tmp_path / "out")]) == 2
    assert "exists already: name another folder with --out" in capsys.readouterr().err
    assert main(["quickstart", str(data), "--minutes", "0", "--out", str(tmp_path / "new")]) == 2
    assert "--minutes is positive" in capsys.readouterr().err


def test_too_little_data_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_moving_boxes(tmp_path / "boxes", 2, 20)
    assert main(["quickstart", str(data), "--out", str(tmp_path / "out")]) == 2
    assert "at least 3 are needed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_files_to_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = write_moving_boxes(tmp_path / "boxes")
    (data / "broken.npz").write_bytes((data / "0.npz").read_bytes()[:2000])  # left out, by all steps alike
    assert main(["quickstart", str(data), "--minutes", "0.1", "--baseline"]) == 0
    out = tmp_path / "outputs/quickstart/boxes"
    last = capsys.readouterr().out.splitlines()[-3:]
    assert last[0].startswith("$ worldmodel play outputs/quickstart/boxes/run/")
    assert last[1] == "Whether actions are followed is not shown: too few held-out episodes."
    assert last[2] == "report: outputs/quickstart/boxes/report.html"
    report = (out / "report.md").read_text()
    for words in (
        "best: ",
        "worst: ",
        "What the model shows",
        "World model of boxes",
        "Which action moves what",
        "the only camera",
        "64x64 pixels | as recorded",
        ", from frame ",  # of a clip
        "static frame (floor)",
        "nearest training frame (floor)",
        "direct predictor (baseline)",
        "The world model is ahead of it on moving pixels in ",
        "Are the actions followed?",
    ):
        assert words in report
    rows = json.loads((out / "rollouts/results.json").read_text())["rows"]
    assert {"static", "nearest", "autoencoder", "true", "shuffled"} <= set(rows)
    assert rows["autoencoder"]["mse"]["mean"] < rows["static"]["mse"]["mean"]
    baseline = json.loads((out / "baseline.json").read_text())
    assert baseline["row"]["clip_psnr"]["count"] == rows["true"]["clip_psnr"]["count"]
    assert baseline["steps"] >= 1
    assert (out / "report.html").stat().st_size > 10_000
    assert not (out / "trial").exists()
