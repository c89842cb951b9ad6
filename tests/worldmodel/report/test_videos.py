import numpy as np
import torch

from worldmodel.report.videos import GAP, LABEL, PANEL_WIDTH, named_row, side_by_side

SIZE = 32


def test_truth_stands_left_of_the_prediction() -> None:
    video = side_by_side(torch.zeros(2, 3, SIZE, SIZE), torch.full((2, 3, SIZE, SIZE), 2.0))
    assert not video[:, :, :PANEL_WIDTH].any()
    assert (video[:, :, PANEL_WIDTH : 2 * PANEL_WIDTH + 2 * GAP] == 255).all()


def test_a_difference_is_gray_where_there_is_none() -> None:
    real, made = torch.zeros(2, 3, SIZE, SIZE), torch.zeros(2, 3, SIZE, SIZE)
    made[1, :, 0, 0] = 1.0
    video = side_by_side(real, made)
    assert video.shape == (2, PANEL_WIDTH, 3 * PANEL_WIDTH + 2 * GAP, 3)
    difference = video[:, :, -PANEL_WIDTH:]
    assert set(np.unique(difference[0])) == {128}
    factor = PANEL_WIDTH // SIZE
    assert (difference[1, :factor, :factor] == 255).all()
    assert (difference[1, factor:] == 128).all()


def test_named_videos_stand_in_a_row_below_their_names() -> None:
    videos = {"one": torch.zeros(2, 3, 48, 64), "other": torch.ones(2, 3, 48, 64)}
    row = named_row(videos)
    assert row.shape == (2, LABEL + 3 * 48, 2 * PANEL_WIDTH + GAP, 3)  # enlarged by a whole factor
    assert not row[:, LABEL:, :PANEL_WIDTH].any()
    assert (row[:, LABEL:, PANEL_WIDTH:] == 255).all()
    assert (row[:, :LABEL, :PANEL_WIDTH] < 128).any()  # a name above each
    assert (row[:, :LABEL, PANEL_WIDTH + GAP :] < 128).any()
