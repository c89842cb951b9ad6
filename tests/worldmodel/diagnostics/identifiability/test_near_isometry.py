import math

import pytest
import torch

from worldmodel.diagnostics import bi_lipschitz


def test_linear_maps_have_the_singular_values_of_their_matrix() -> None:
    matrix = torch.diag(torch.tensor([3.0, 2.0, 0.5], dtype=torch.float64))
    turn = torch.linalg.qr(
        torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )[0]
    result = bi_lipschitz(lambda z: z @ (turn @ matrix).T, torch.randn(7, 3, dtype=torch.float64))
    assert (result.lower, result.upper) == pytest.approx((0.5, 3.0))
    assert result.ratio_median == pytest.approx(6.0)
    assert result.interval == pytest.approx((6.0, 6.0))
    assert result.num_samples == 7


def test_a_curve_on_a_circle_is_an_isometry_and_a_singular_map_is_not() -> None:
    z = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None]
    circle = bi_lipschitz(lambda t: torch.cat([t.cos(), t.sin()], dim=1), z)
    assert (circle.lower, circle.upper) == pytest.approx((1.0, 1.0))
    folded = bi_lipschitz(lambda t: torch.cat([t[:, :1], 0 * t[:, 1:]], dim=1), z.repeat(1, 2))
    assert folded.lower == 0.0
    assert math.isinf(folded.ratio_median)
