from pathlib import Path

import pytest
import torch

from worldmodel.evaluation.compare_models import draw_comparison, gripper_paths, main
from worldmodel.locator.model import Located


class StandInLocator:
    """Sees the left gripper stand still and the right one where the brightest column is."""

    def locate(self, frames: torch.Tensor) -> Located:
        column = frames.mean((1, 2)).argmax(-1).float()
        points = torch.zeros(len(frames), 3, 2)
        points[:, 1, 0] = column
        return Located(points, torch.ones(len(frames), 3))


def moving_bar(speed: int) -> torch.Tensor:
    video = torch.zeros(9, 3, 16, 16)
    for frame in range(9):
        video[frame, :, :, min(15, frame * speed)] = 1
    return video


def test_the_path_is_that_of_the_gripper_that_moves(tmp_path: Path) -> None:
    videos = {"truth": moving_bar(1), "ACG": torch.zeros(9, 3, 16, 16), "ACG+MCL": moving_bar(1)}
    paths = gripper_paths(videos, StandInLocator())
    assert paths["truth"][:, 0].tolist() == list(range(9))
    assert torch.equal(paths["ACG+MCL"], paths["truth"])
    assert paths["ACG"].abs().max() == 0
    draw_comparison(tmp_path / "figure.png", videos, paths, 4)
    assert (tmp_path / "figure.png").stat().st_size > 2000


def test_models_without_a_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "run/model"]) == 2
    assert "NAME=FOLDER" in capsys.readouterr().err
