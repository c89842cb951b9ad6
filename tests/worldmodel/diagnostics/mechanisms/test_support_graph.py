import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodel.diagnostics import irreducible_components, support_graph


def two_by_two(seed: int = 0) -> np.ndarray:
    """Two factors of two coordinates on 5 + 6 disjoint outputs."""
    rng = np.random.default_rng(seed)
    jacobian = np.zeros((11, 4))
    jacobian[:5, :2], jacobian[5:, 2:] = rng.normal(size=(5, 2)), rng.normal(size=(6, 2))
    return jacobian


@pytest.mark.parametrize(
    ("columns", "count"),
    [
        (([1, 1, 1, 0, 0], [0, 0, 0, 1, 1]), 2),
        (([1, 1, 2, 0, 0], [0, 0, 1, 1, 1]), 1),
        (([1, 1, 2, 0, 0], [1, 2, 1, 1, 1]), 1),
    ],
)
def test_toys(columns: tuple[list[int], list[int]], count: int) -> None:
    jacobian = np.array(columns, dtype=float).T
    assert support_graph(jacobian).num_components == count
    assert irreducible_components(jacobian).num_components == count


@pytest.mark.parametrize("seed", range(5))
def test_mixing_merges_the_coordinate_graph_but_not_the_matroid(seed: int) -> None:
    jacobian, mixing = two_by_two(seed), np.random.default_rng(100 + seed).normal(size=(4, 4))
    assert support_graph(jacobian).components == ((0, 1), (2, 3))
    assert support_graph(jacobian @ mixing).num_components == 1
    found = irreducible_components(jacobian @ mixing)
    assert found.num_components == 2
    # The directions it returns undo the mixing: each moves one group of outputs only.
    for part in found.subspaces:
        moved = np.abs(jacobian @ mixing @ part).max(1) > 1e-9
        assert moved.sum() in (5, 6)


def test_irreducible_and_reducible_blocks_are_told_apart() -> None:
    jacobian = two_by_two()
    found = irreducible_components(jacobian, blocks=[(0, 1), (2, 3)])
    assert found.block_components == (1, 1)
    # One block of all four coordinates hides both factors.
    assert irreducible_components(jacobian, blocks=[(0, 1, 2, 3)]).block_components == (2,)
    assert irreducible_components(np.eye(3), blocks=[(0,), (1, 2)]).block_components == (1, 2)


def test_one_basis_for_all_points_or_not() -> None:
    mixing = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    base = torch.from_numpy(two_by_two())

    def constant(z: Tensor) -> Tensor:
        return torch.sinh(z @ mixing @ base.T)

    z = 0.3 * torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert irreducible_components(constant, z).num_components == 2
    assert irreducible_components(constant, z).misalignment < 1e-6

    def bent(z: Tensor) -> Tensor:
        return torch.sinh((z + 0.5 * z.roll(1, 1) ** 2) @ mixing @ base.T)

    found = irreducible_components(bent, z)
    assert found.num_components == 2
    assert found.misalignment > 0.05


def test_persistence_of_a_noisy_split() -> None:
    # Coordinates of one factor move its outputs about alike, so that edges inside factors are heavy.
    even = np.where(two_by_two() != 0, 1 + 0.2 * two_by_two(), 0)
    noisy = even + 0.02 * np.random.default_rng(9).normal(size=(11, 4))
    found = support_graph(noisy)
    assert found.num_components == 1
    assert found.most_persistent[0] == 2
    assert found.components_above(0.2) == 2
    assert found.components_above(1.0) == 4
    assert found.components_above(-1.0) == 1
    assert found.curve.tolist() == sorted(found.curve.tolist())
    assert irreducible_components(noisy).curve[0] == 1


def test_edges_are_united_or_voted_on() -> None:
    touching = np.array([[1.0, 1], [0, 1]])
    sample = torch.from_numpy(np.stack([np.eye(2), np.eye(2), touching]))
    assert support_graph(sample).num_components == 1
    assert support_graph(sample, agreement=0.5).num_components == 2
    assert support_graph(sample).per_point.tolist() == [2, 2, 1]
    with pytest.raises(ValueError, match="agreement"):
        support_graph(sample, agreement=1.0)


def test_weights_have_their_closed_form() -> None:
    found = support_graph(np.array([[3.0, 0], [4, 1]]))
    np.testing.assert_allclose(found.weights, [[1, 0.8], [0.8, 1]])
    np.testing.assert_allclose(found.merges, [0.8])


def test_rank_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loses rank"):
        irreducible_components(np.ones((4, 2)))
