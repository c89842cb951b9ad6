import numpy as np
import pytest
import torch

from worldmodel.diagnostics.mechanisms.sparse_volume import sparse_volume_loss

BLOCKS = [(0, 1), (2, 3)]
COORDINATES = [(i,) for i in range(4)]


def overlapping(seed: int = 0) -> torch.Tensor:
    """Two factors of two coordinates on 30 outputs each, 15 of them shared."""
    rng = torch.Generator().manual_seed(seed)
    jacobian = torch.zeros(45, 4, dtype=torch.float64)
    jacobian[:30, :2] = torch.randn(30, 2, generator=rng, dtype=torch.float64)
    jacobian[15:, 2:] = torch.randn(30, 2, generator=rng, dtype=torch.float64)
    return jacobian


def test_closed_form_of_flat_orthogonal_columns() -> None:
    # Two columns flat on 4 and 9 disjoint outputs: l1 over l2 is 2 and 3, and nothing is lost in volume.
    jacobian = torch.zeros(13, 2, dtype=torch.float64)
    jacobian[:4, 0], jacobian[4:, 1] = 5.0, -0.1
    found = sparse_volume_loss(jacobian, [(0,), (1,)])
    assert found.item() == pytest.approx(np.log(2) + np.log(3), abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_scale_and_mixing_inside_a_factor_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    turn = np.zeros((4, 4))
    turn[:2, :2], turn[2:, 2:] = 3 * rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
    before = sparse_volume_loss(overlapping(), BLOCKS)
    after = sparse_volume_loss(overlapping() @ torch.from_numpy(turn), BLOCKS)
    assert after.item() == pytest.approx(before.item(), abs=1e-3)
    scale = torch.tensor([1e-3, 10.0, 2.0, 0.5], dtype=torch.float64)
    scaled = sparse_volume_loss(overlapping() * scale, COORDINATES)
    assert scaled.item() == pytest.approx(sparse_volume_loss(overlapping(), COORDINATES).item(), abs=0.05)


@pytest.mark.parametrize("blocks", [BLOCKS, COORDINATES])
def test_bases_that_mix_overlapping_factors_cost_more(blocks: list[tuple[int, ...]]) -> None:
    true = sparse_volume_loss(overlapping(), blocks).item()
    rng = torch.Generator().manual_seed(1)
    for _ in range(50):
        mixing = torch.randn(4, 4, generator=rng, dtype=torch.float64)
        assert sparse_volume_loss(overlapping() @ mixing, blocks).item() > true


def test_factors_on_the_same_outputs_cost_more_and_gradients_are_finite() -> None:
    jacobian = overlapping()
    collapsed = jacobian.clone()
    collapsed[:, 2:] = collapsed[:, :2] + 0.01 * collapsed[:, 2:]
    assert sparse_volume_loss(collapsed, BLOCKS) > sparse_volume_loss(jacobian, BLOCKS) + 1
    for blocks in (BLOCKS, COORDINATES):
        leaf = jacobian.clone().requires_grad_()
        sparse_volume_loss(leaf, blocks).backward()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
