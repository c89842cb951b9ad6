from pathlib import Path

import mujoco
import numpy as np
import pytest
from safetensors.numpy import save_file

from robotwin_adapters.tabletop.render import Renderer
from worldmodel.mddiff.data import render_rooms as rendered
from worldmodel.mddiff.data.rooms import FACTOR_SIZES, FULL, SHAPES, Rooms, open_rooms, palette
from worldmodel.mddiff.data.types import grid_index


@pytest.fixture(scope="module")
def dataset() -> Rooms:
    """Rooms of which only the first and last size are rendered, from three view points."""
    maps = np.zeros((480, 3, 64, 64), np.uint16)
    for scale in (0, 7):
        for shape in range(4):
            for view in (0, 7, 14):
                index = np.ravel_multi_index((scale, shape, view), FACTOR_SIZES[3:])
                geometry = (rendered.SCALES[scale], SHAPES[shape], rendered.ANGLES[view])
                maps[index] = rendered.brightness(*geometry)
    return Rooms(maps)


def picture(dataset: Rooms, *factors: int) -> np.ndarray:
    return dataset.images(grid_index(dataset, np.array([factors])))[0].numpy().transpose(1, 2, 0).astype(int)


@pytest.mark.parametrize("hues", [(0, 3, 7), (9, 9, 9), (5, 1, 2)])
def test_recoloring_equals_rendering_in_color(dataset: Rooms, hues: tuple[int, int, int]) -> None:
    model = rendered.build_room("capsule", rendered.SCALES[7])
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    look = rendered.colored(model, *(tuple(palette()[hue] / 255) for hue in hues))
    direct = Renderer(model, rendered.view(rendered.ANGLES[14]), 128, 128, look=look).render(data)
    direct = direct.reshape(64, 2, 64, 2, 3).mean((1, 3))
    assert np.abs(picture(dataset, *hues, 7, 3, 14) - direct).max() <= 1.5  # two roundings, in levels of 255


def test_each_hue_moves_only_its_surface(dataset: Rooms) -> None:
    base = picture(dataset, 0, 3, 6, 7, 0, 7)
    maps = dataset.maps[np.ravel_multi_index((7, 0, 7), FACTOR_SIZES[3:])]
    for surface in range(3):
        hues = [0, 3, 6]
        hues[surface] += 1
        moved = np.abs(picture(dataset, *hues, 7, 0, 7) - base).sum(-1) > 0
        assert not (moved & (maps[surface] == 0)).any()
        assert moved[maps[surface] > FULL // 4].all()


def test_the_room_has_no_hole(dataset: Rooms) -> None:
    drawn = dataset.maps.reshape(480, -1).any(1)
    assert drawn.sum() == 24
    assert (dataset.maps[drawn].sum(1, dtype=np.int64) > FULL // 4).all()


def test_scale_shape_and_orientation_change_the_object(dataset: Rooms) -> None:
    def area(scale: int, shape: int, view: int) -> int:
        return int((dataset.maps[np.ravel_multi_index((scale, shape, view), FACTOR_SIZES[3:]), 2] > 0).sum())

    assert area(7, 2, 7) > 2 * area(0, 2, 7)
    seen = dataset.maps[dataset.maps.reshape(480, -1).any(1)]
    assert len(np.unique(seen.reshape(24, -1), axis=0)) == 24


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"maps": np.zeros((3, 3, 64, 64), np.uint16)}, tmp_path / "x.safetensors")
    with pytest.raises(
        ValueError, match=r"expected uint16 maps \[480, 3, H, W\], found uint16 \(3, 3, 64, 64\)"
    ):
        open_rooms(tmp_path / "x.safetensors")
