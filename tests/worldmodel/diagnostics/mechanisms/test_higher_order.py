import numpy as np
import pytest
import torch
from torch import Tensor, nn

from worldmodel.diagnostics import type_h

POINTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def additive(z: Tensor) -> Tensor:
    return torch.stack([z[:, 0].sin() + z[:, 1] ** 2, z[:, 2].exp() - z[:, 0] ** 3], dim=1)


def test_additive_generators_hold() -> None:
    found = type_h(additive, POINTS)
    assert found.holds == 1
    assert found.score < 1e-12
    assert found.shape == "curved"


def test_a_product_has_its_closed_form() -> None:
    # g = z0 z1 + z2^2: the Hessian has two entries of 1 across factors and one entry of 2 within.
    found = type_h(lambda z: (z[:, :1] * z[:, 1:2]) + z[:, 2:] ** 2, POINTS[:1], num_probes=200)
    assert found.pairs is not None
    np.testing.assert_array_equal(found.pairs > 0, [[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    # E (u v)^2 = 1 has a standard error of sqrt(8 / 200) = 0.2; squares of 1 and 4.
    assert found.pairs[0, 1] ** 2 == pytest.approx(1, abs=0.6)
    assert found.pairs[2, 2] ** 2 == pytest.approx(4, abs=2.4)
    assert found.score == pytest.approx(np.sqrt(2 / 6), abs=0.15)
    joined = type_h(lambda z: (z[:, :1] * z[:, 1:2]) + z[:, 2:] ** 2, POINTS, [(0, 1), (2,)])
    assert joined.holds == 1


def test_small_blocks_of_the_hessian_fall_below_the_threshold() -> None:
    # Entries 2, 2 and 2 within and 0.01 across: gone once tau passes 0.01 / 2, whatever the probes say.
    found = type_h(lambda z: z**2 + 0.01 * z[:, :1] * z[:, 1:2], POINTS, thresholds=(0.0, 1e-5, 0.2))
    assert found.thresholds == (0.0, 1e-5, 0.2)
    assert found.curve[0] == found.curve[1] == found.score > 1e-4
    assert found.curve[2] == 0
    assert found.holds_curve.tolist() == [0, 0, 1]
    assert len(type_h(additive, POINTS).curve) == 7


def test_many_blocks_are_probed_against_all_others() -> None:
    z = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = type_h(lambda z: z**2, z)
    assert found.pairs is None
    assert found.holds == 1
    mixed = type_h(lambda z: z * z.roll(1, 1), z, num_probes=8)
    assert mixed.score == pytest.approx(1)
    # Each coordinate meets two others: the squares average 2, with a standard error of sqrt(16 / 288) = 0.24.
    assert np.square(mixed.across).mean() == pytest.approx(2, abs=0.8)
    assert mixed.within.max() == 0


@pytest.mark.parametrize(("layer", "shape"), [(nn.ReLU(), "piecewise linear"), (nn.Identity(), "affine")])
def test_generators_without_second_derivatives_are_named(layer: nn.Module, shape: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), layer, nn.Linear(16, 5))
    with pytest.warns(UserWarning, match=shape):
        found = type_h(net, POINTS.float())
    assert np.isnan(found.score)
    assert found.holds == 0
    assert found.shape.startswith(shape)


def test_a_jacobian_is_not_enough() -> None:
    with pytest.raises(ValueError, match="second derivatives"):
        type_h(np.eye(3), POINTS)
