from pathlib import Path

import numpy as np
import pytest

from worldmodel.mddiff.data.array_factors import ArrayFactors
from worldmodel.mddiff.data.factors import FactorDataConfig, load_images, open_factor_data
from worldmodel.mddiff.data.types import grid_index, is_grid
from worldmodel.mddiff.data.views import SubGrid, shrunk, sub_grid


def numbered(sizes: tuple[int, ...] = (4, 5, 3)) -> ArrayFactors:
    """Every pixel of picture i shows i."""
    count = int(np.prod(sizes))
    pixels = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 4, 4)).copy()
    return ArrayFactors("numbered", ("a", "b", "c"), sizes, pixels)


def test_a_sub_grid_shows_the_pictures_of_the_kept_values() -> None:
    whole = numbered()
    part = sub_grid(whole, [2, 3, 3])
    assert (part.factor_sizes, len(part), part.name) == ((2, 3, 3), 18, "numbered_2x3x3")
    assert is_grid(part)
    # Kept: a in (0, 3), b in (0, 2, 4), all c.
    index = grid_index(part, np.array([[1, 2, 0]]))
    assert part.images(index)[0, 0, 0, 0].item() == grid_index(whole, np.array([[3, 4, 0]]))[0]


def test_values_on_a_circle_are_spread_over_the_circle() -> None:
    pixels = np.zeros((100, 4, 4), np.uint8)
    hues = sub_grid(ArrayFactors("hues", ("wall_hue", "scale"), (10, 10), pixels), [5, 5])
    assert isinstance(hues, SubGrid)
    assert [kept.tolist() for kept in hues.kept] == [[0, 2, 4, 6, 8], [0, 2, 4, 7, 9]]


@pytest.mark.parametrize(("other", "expected"), [("pos_x", [0, 2, 4, 6, 8]), ("scale", [0, 2, 4, 7, 9])])
def test_only_the_sprites_turn_full_circle(other: str, expected: list[int]) -> None:
    turned = ArrayFactors("turned", ("orientation", other), (10, 10), np.zeros((100, 4, 4), np.uint8))
    part = sub_grid(turned, [5, 5])
    assert isinstance(part, SubGrid)
    assert part.kept[0].tolist() == expected


def test_no_counts_change_nothing() -> None:
    whole = numbered()
    assert sub_grid(whole, ()) is whole


@pytest.mark.parametrize(
    ("counts", "message"), [([2, 2], "one count per factor"), ([5, 5, 3], "5 cannot be kept")]
)
def test_wrong_counts_are_refused(counts: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sub_grid(numbered(), counts)


def test_a_table_that_is_no_grid_has_no_sub_grid() -> None:
    table = ArrayFactors("t", ("a",), (4,), np.zeros((2, 4, 4), np.uint8), np.array([[1], [1]]))
    with pytest.raises(ValueError, match="no full grid"):
        sub_grid(table, [2])


def test_shrinking_takes_means() -> None:
    pixels = np.zeros((1, 4, 4, 3), np.uint8)
    pixels[0, :2, :2] = [[[0, 4, 8]] * 2, [[100, 104, 108]] * 2]
    small = shrunk(ArrayFactors("p", ("a",), (1,), pixels), 2)
    assert small.images(np.zeros(1, np.int64))[0, :, 0, 0].tolist() == [50, 54, 58]
    with pytest.raises(ValueError, match="do not divide by 3"):
        shrunk(small, 3)


def test_values_and_pictures_must_match() -> None:
    with pytest.raises(ValueError, match="make 60 pictures, found 2"):
        ArrayFactors("t", ("a", "b", "c"), (4, 5, 3), np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(ValueError, match="exceed the sizes"):
        ArrayFactors("t", ("a",), (2,), np.zeros((1, 4, 4), np.uint8), np.array([[2]]))


def test_a_config_names_the_pictures_that_training_loads(tmp_path: Path) -> None:
    images = np.arange(1_036_800 * 3, dtype=np.uint32).astype(np.uint8).reshape(-1, 1, 1, 3)
    np.savez(tmp_path / "mpi3d_toy.npz", images=images)
    config = FactorDataConfig(str(tmp_path / "mpi3d_toy.npz"), (6, 6, 2, 3, 3, 2, 40), 1, str(tmp_path))
    dataset = open_factor_data(config)
    assert len(dataset) == 51_840
    (batch,) = load_images(dataset, [[0, 51_839]])
    assert (batch[:, :, 0, 0].numpy() == images[[0, -1], 0, 0]).all()
    with pytest.warns(UserWarning, match="num_workers=2 is ignored"):
        list(load_images(dataset, [[0]], num_workers=2))
