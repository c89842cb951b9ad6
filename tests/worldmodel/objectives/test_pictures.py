import pytest
import torch

from worldmodel.objectives.pictures import picture_loss


def test_an_even_error_counts_as_square_and_absolute_value():
    real = torch.zeros(2, 3, 5, 8, 8)
    loss = picture_loss(real + 0.2, real, moving_weight=5.0, edge_weight=1.0)
    assert float(loss) == pytest.approx(0.2**2 + 0.3 * 0.2, rel=2e-3)  # no edges in an even error


def test_moving_pixels_count_more():
    real = torch.zeros(1, 3, 2, 8, 8)
    real[:, :, 1, 0] = 1.0  # one row of eight moves in the second frame
    still, moving = real.clone(), real.clone()
    still[:, :, 1, 4] += 0.5
    moving[:, :, 1, 0] -= 0.5
    losses = [float(picture_loss(made, real, moving_weight=4.0, edge_weight=0.0)) for made in (still, moving)]
    floor = float(picture_loss(real, real, moving_weight=4.0, edge_weight=0.0))
    gain = (losses[1] - floor) / (losses[0] - floor)
    assert gain == pytest.approx(4.0, rel=1e-3)


def test_blur_costs_edges():
    real = torch.zeros(1, 3, 1, 16, 16)
    real[..., 8:] = 1.0
    blurred = (real + real.roll(1, -1)) / 2
    plain, with_edges = (picture_loss(blurred, real, moving_weight=1.0, edge_weight=w) for w in (0.0, 1.0))
    # The wrong columns are -0.5 at 8 and +0.5 at 0: Laplacians -0.5, 1, -0.5 inside, 0.5 at the border.
    assert float(with_edges - plain) == pytest.approx((0.5 + 1.0 + 0.5 + 0.5 + 0.5) / 16)
