import resource
import sys
import time

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from worldmodel.diagnostics import jacobian_blocks, local_diffeomorphism, mechanistic_report, type_h


def cubic(z: Tensor) -> Tensor:
    return torch.stack([z[:, 0] ** 3, z[:, 0] * z[:, 1], z[:, 1].sin()], dim=1)


POINTS = torch.tensor([[1.0, 2.0], [-0.5, 0.3], [2.0, -1.0]], dtype=torch.float64)


def closed_form(z: Tensor) -> Tensor:
    zero, x, y = torch.zeros(len(z), dtype=z.dtype), z[:, 0], z[:, 1]
    rows = [[3 * x**2, zero], [y, x], [zero, y.cos()]]
    return torch.stack([torch.stack(row, -1) for row in rows], 1)


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_jacobians_have_their_closed_form(chunk_size: int | None) -> None:
    found = jacobian_blocks(cubic, POINTS, chunk_size=chunk_size)
    torch.testing.assert_close(found.jacobian, closed_form(POINTS))
    assert found.blocks == ((0,), (1,))
    torch.testing.assert_close(found.singular_values, torch.linalg.svdvals(closed_form(POINTS)))


def test_a_generator_of_single_points_gives_the_same() -> None:
    found = jacobian_blocks(lambda z: cubic(z.unsqueeze(0)).squeeze(0), POINTS, batched=False)
    torch.testing.assert_close(found.jacobian, closed_form(POINTS))


@pytest.mark.parametrize("z", [POINTS[:1].expand(4, 2), POINTS[:, :1].expand(3, 2)], ids=["points", "axes"])
def test_expanded_points_give_the_same(z: Tensor) -> None:
    torch.testing.assert_close(jacobian_blocks(cubic, z).jacobian, closed_form(z.clone()))
    same = type_h(cubic, z.clone())
    np.testing.assert_array_equal(type_h(cubic, z).per_point, same.per_point)


def test_blocks_give_row_norms_and_supports() -> None:
    jacobian = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [1e-5, 0.0, 0.0]])
    found = jacobian_blocks(jacobian, blocks=[(0, 1), (2,)])
    np.testing.assert_allclose(found.row_norms[0], [[5, 0], [0, 2], [1e-5, 0]])
    assert found.block_support(1e-3)[0].tolist() == [[True, False], [False, True], [False, False]]
    assert found.block_support(1e-6)[0, 2].tolist() == [True, False]
    assert jacobian_blocks(found, blocks=[(2, 1, 0)]).blocks == ((2, 1, 0),)


def test_modules_are_differentiated_in_double_precision_and_left_alone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Unflatten(1, (2, 4))).eval()
    found = jacobian_blocks(net, torch.randn(4, 3))
    assert found.jacobian.shape == (4, 8, 3)
    assert found.jacobian.dtype == torch.float64
    assert net[0].weight.dtype == torch.float32
    assert not found.jacobian.requires_grad


def test_modules_in_training_mode_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 is in training mode.*eval"):
        jacobian_blocks(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), torch.randn(3, 2))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="needs points"):
        jacobian_blocks(cubic)
    with pytest.raises(ValueError, match="each of the 2 latent coordinates once"):
        jacobian_blocks(cubic, POINTS, [(0,), (0, 1)])
    with pytest.raises(ValueError, match=r"\[m d\] or \[n m d\]"):
        jacobian_blocks(np.zeros(3))
    with pytest.raises(ValueError, match="not finite"):
        jacobian_blocks(np.array([[np.nan]]))


def test_rank_loss_is_found_where_it_is() -> None:
    found = local_diffeomorphism(cubic, torch.tensor([[1.0, 2.0], [0.0, 2.0], [0.0, 0.0]]))
    # At (0, y) the first column is (0, y, 0): full rank; at the origin it is 0.
    assert found.share == pytest.approx(2 / 3)
    assert found.worst_point == 2
    assert np.isinf(found.condition_number[2])
    assert found.interval[0] < 2 / 3 < found.interval[1]
    narrow = local_diffeomorphism(lambda z: z[:, :1], POINTS)
    assert narrow.share == 0


def image_generator() -> nn.Module:
    """The 64 x 64 x 3 decoder of the disentanglement literature, smooth so that Type H says something."""
    layers: list[nn.Module] = [nn.Linear(20, 256), nn.GELU(), nn.Linear(256, 1024), nn.GELU()]
    layers.append(nn.Unflatten(1, (64, 4, 4)))
    for before, after in ((64, 64), (64, 32), (32, 32)):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.GELU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(32, 3, 4, 2, 1))


def test_a_report_on_images_is_quick_and_small() -> None:
    torch.manual_seed(0)
    net, z = image_generator(), torch.randn(8, 20)
    mechanistic_report(net, z[:1])  # imports that happen once
    unit = 1 if sys.platform == "darwin" else 1024
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    report = mechanistic_report(net, z)
    seconds = time.process_time() - start
    assert (report.num_outputs, report.latent_dim) == (12288, 20)
    assert report.type_h is not None
    # Measured 1.8 s on the wall with two threads (2.0 s with one) when free; the bound leaves room.
    assert seconds < 4
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * unit < 1e9
