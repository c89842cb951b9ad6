import matplotlib as mpl
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

from worldmodel.report.figures import (
    PALETTE,
    POINT_COLORS,
    PointPanel,
    draw_bars,
    draw_curves,
    draw_points,
    draw_responses,
    draw_rows,
    draw_trajectories,
    styled,
)
from worldmodel.report.intervals import mean_estimate

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
    left, right, _ = POINT_COLORS
    for panel in panels:  # both paths stand in both panels
        assert shows(panel, 28, 8, left)  # the dot at the end
        assert shows(panel, 8, 22, right)
        assert not shows(panel, 8, 22, left)
        assert shows(panel, 24, 28, right)
        assert any(shows(panel, x, 12, left) for x in (14, 15, 16, 17))  # dashed
        assert not any(shows(panel, x, 20, color) for x in (14, 18, 30) for color in POINT_COLORS)


def test_a_point_out_of_the_picture_breaks_its_path(panels):
    assert shows(panels[0], 9, 8, POINT_COLORS[0])
    assert not shows(panels[0], 16, 8, POINT_COLORS[0])
    assert shows(panels[0], 26, 8, POINT_COLORS[0])


def test_rows_of_pictures_have_labels_and_titles(tmp_path):
    rows = {"one": torch.rand(3, 3, 8, 8), "two": torch.rand(2, 3, 8, 8)}
    sizes = []
    for titles in ((), ("a", "b", "c")):
        draw_rows(tmp_path / "sub/rows.png", rows, titles)
        with Image.open(tmp_path / "sub/rows.png") as picture:
            sizes.append(picture.size)
    assert sizes[0][0] > sizes[0][1] > 50
    assert sizes[1][1] > sizes[0][1]  # titles stand above the pictures


def test_what_a_dimension_moves_is_dark_in_its_picture(tmp_path):
    changes = {"weak": torch.zeros(SIZE, SIZE), "strong": torch.zeros(SIZE, SIZE)}
    changes["weak"][:8], changes["strong"][-8:] = 0.01, 0.2
    draw_responses(tmp_path / "moves.png", torch.full((3, SIZE, SIZE), 0.5), changes)
    pixels = np.asarray(Image.open(tmp_path / "moves.png").convert("L")).astype(float)
    left, right = np.array_split(pixels, 2, axis=1)  # the strongest first
    height = len(pixels)
    assert left[-height // 8 :].mean() < left[height // 2 - 9 : height // 2].mean() - 40
    assert right[-height // 8 :].mean() == pytest.approx(right[height // 2 - 9 : height // 2].mean(), abs=25)


def test_names_from_data_are_no_formulas(tmp_path):
    # Two dollar signs would be read as a formula, and this one ends in an error.
    values = {r"joint $\frac{$ a": mean_estimate([0.1, 0.2]), "one_clip": mean_estimate([0.3])}
    draw_bars(tmp_path / "bars.png", values, "change")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_drawing_leaves_the_users_style_alone(tmp_path):
    before = dict(mpl.rcParams)
    draw_bars(tmp_path / "bars.png", {"a": mean_estimate([0.1, 0.2])}, "change")
    assert dict(mpl.rcParams) == before
    inside = styled(lambda: mpl.rcParams["axes.prop_cycle"].by_key()["color"])()
    assert inside == list(PALETTE)


def test_a_row_with_one_episode_has_no_band(tmp_path):
    panels = {"PSNR": {"true": [mean_estimate([20.0])] * 3, "hold": [mean_estimate([18.0, 19.0])] * 3}}
    draw_curves(tmp_path / "curves.png", panels, first_frame=1)
    draw_points(tmp_path / "points.png", [PointPanel("dB", 19.0, {"a $x": [mean_estimate([20.0])] * 2})])
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "points.png"}


# Vienot, Brettel and Mollon 1999: linear RGB as people without L or M cones see it.
DICHROMATS = {
    "protan": ((0.1124, 0.8876, 0.0), (0.1124, 0.8876, 0.0), (0.0040, -0.0040, 1.0)),
    "deutan": ((0.2928, 0.7072, 0.0), (0.2928, 0.7072, 0.0), (-0.0223, 0.0223, 1.0)),
}


@pytest.mark.parametrize("matrix", DICHROMATS.values(), ids=DICHROMATS)
def test_the_colors_of_lines_stay_apart_for_the_color_blind(matrix):
    def least_distance(names):
        colors = np.array([matplotlib.colors.to_rgb(name) for name in names])
        seen = np.clip((colors**2.2) @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
        return np.linalg.norm(seen[:, None] - seen[None], axis=2)[np.triu_indices(len(names), 1)].min()

    assert least_distance(PALETTE[:6]) > 0.14
    assert least_distance([f"C{number}" for number in range(6)]) < 0.1  # the default colors do not
