import pytest
import torch

from worldmodel.diagnostics import sliced_wasserstein


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_sample_is_at_no_distance_from_itself_in_any_order() -> None:
    pictures = torch.rand(40, 3, 4, 4, generator=rng())
    assert sliced_wasserstein(pictures, pictures.flip(0), generator=rng()) == pytest.approx(0, abs=1e-12)


def test_a_shift_in_one_dimension_is_its_own_distance() -> None:
    rows = torch.randn(100, 1, generator=rng())
    assert sliced_wasserstein(rows, rows + 0.7, generator=rng()) == pytest.approx(0.7, rel=1e-5)


@pytest.mark.parametrize("dim", [2, 48])
def test_a_shift_of_all_pixels_is_the_shift_of_a_pixel(dim: int) -> None:
    rows = torch.randn(50, dim, generator=rng())
    value = sliced_wasserstein(rows, rows + 0.25, num_projections=20_000, generator=rng(1))
    assert value == pytest.approx(0.25, rel=0.02)


def test_gaussians_of_two_widths_are_at_the_difference_of_the_widths() -> None:
    first, second = (torch.randn(20_000, 3, generator=rng(seed)) for seed in (1, 2))
    value = sliced_wasserstein(first, 3 * second, num_projections=200, generator=rng(3))
    assert value == pytest.approx(2, rel=0.03)


def test_directions_follow_the_generator() -> None:
    first, second = torch.rand(2, 30, 12, generator=rng())
    values = [sliced_wasserstein(first, second, generator=rng(seed)) for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


def test_samples_of_two_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="two samples of one size"):
        sliced_wasserstein(torch.zeros(3, 2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="0 projections"):
        sliced_wasserstein(torch.zeros(3, 2), torch.zeros(3, 2), num_projections=0)
