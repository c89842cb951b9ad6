import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from worldmodel.report.figures import COLORS, draw_trajectories

SIZE, LENGTH = 32, 9


def straight(start: tuple[float, float], end: tuple[float, float]) -> torch.Tensor:
    weight = torch.linspace(0, 1, LENGTH)[:, None]
    return (1 - weight) * torch.tensor(start) + weight * torch.tensor(end)


@pytest.fixture(scope="module")
def panels(tmp_path_factory):
    """Truth and prediction of black frames: left gripper along the top, right one downwards, no object."""
    real = torch.stack([straight((4, 8), (28, 8)), straight((8, 16), (8, 28))], 1)
    made = torch.stack([straight((4, 12), (28, 12)), straight((24, 16), (24, 28))], 1)
    real[3:6, 0] = float("nan")  # out of the picture on its way
    black = torch.zeros(LENGTH, 3, SIZE, SIZE)
    path = tmp_path_factory.mktemp("pictures") / "paths.png"
    draw_trajectories(path, black, black, real, made)
    picture = plt.imread(path)[..., :3]
    middle = picture.shape[1] // 2
    return [_inside(picture[:, :middle]), _inside(picture[:, middle:])]


def _inside(half: np.ndarray) -> np.ndarray:
    """The frame alone, without title and margins: black that lets a quarter of the paper through."""
    is_frame = np.abs(half - 0.25).max(2) < 0.02
    rows, columns = (np.flatnonzero(is_frame.sum(axis) > 100) for axis in (1, 0))
    return half[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def shows(panel: np.ndarray, x: float, y: float, color: str) -> bool:
    """Whether the color is within half a pixel of the frame's (x, y)."""
    scale_y, scale_x = panel.shape[0] / SIZE, panel.shape[1] / SIZE
    rows = slice(round((y - 0.5) * scale_y), round((y + 0.5) * scale_y))
    columns = slice(round((x - 0.5) * scale_x), round((x + 0.5) * scale_x))
    near = np.abs(panel[rows, columns] - matplotlib.colors.to_rgb(color)).max(2) < 0.05
    return bool(near.any())


def test_paths_lie_where_the_points_are(panels):
    left, right, _ = COLORS
    for panel in panels:  # both paths stand in both panels
        assert shows(panel, 28, 8, left)  # the dot at the end
        assert shows(panel, 8, 22, right)
        assert not shows(panel, 8, 22, left)
        assert shows(panel, 24, 28, right)
        assert any(shows(panel, x, 12, left) for x in (14, 15, 16, 17))  # dashed
        assert not any(shows(panel, x, 20, color) for x in (14, 18, 30) for color in COLORS)


def test_a_point_out_of_the_picture_breaks_its_path(panels):
    assert shows(panels[0], 9, 8, COLORS[0])
    assert not shows(panels[0], 16, 8, COLORS[0])
    assert shows(panels[0], 26, 8, COLORS[0])
