from itertools import product

import numpy as np
import pytest

from worldmodel.diagnostics import sparsity_gap

BLOCKS = [(0, 1), (2, 3)]


def overlapping(shared: int, seed: int = 0) -> np.ndarray:
    """Two factors of two coordinates that move 5 and 6 outputs, `shared` of them in common."""
    rng = np.random.default_rng(seed)
    jacobian = np.zeros((11 - shared, 4))
    jacobian[:5, :2] = rng.normal(size=(5, 2))
    jacobian[5 - shared :, 2:] = rng.normal(size=(6, 2))
    return jacobian


@pytest.mark.parametrize(
    ("columns", "plus", "minus"),
    [
        (([1, 1, 1, 0, 0], [0, 0, 0, 1, 1]), 5, 7),
        (([1, 1, 2, 0, 0], [0, 0, 1, 1, 1]), 6, 7),
        (([1, 1, 2, 0, 0], [1, 2, 1, 1, 1]), 8, 7),
    ],
)
def test_toys(columns: tuple[list[int], list[int]], plus: int, minus: int) -> None:
    found = sparsity_gap(np.array(columns, dtype=float).T)
    assert found.is_exact
    assert (found.rho_plus[0], found.rho_minus[0], found.gap) == (plus, minus, minus - plus)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("shared", "plus", "minus"), [(0, 18, 22), (2, 18, 19)])
def test_generic_factors_of_two_coordinates(shared: int, plus: int, minus: int, seed: int) -> None:
    found = sparsity_gap(overlapping(shared, seed), blocks=BLOCKS)
    assert (found.rho_plus[0], found.rho_minus[0]) == (plus, minus)


@pytest.mark.parametrize("seed", range(4))
def test_exact_counts_equal_brute_force_over_small_integer_bases(seed: int) -> None:
    # Integer Jacobians whose best bases have small integer entries: all of them can be tried.
    rng = np.random.default_rng(seed)
    jacobian = rng.integers(-1, 2, size=(6, 2)).astype(float)
    jacobian[0], jacobian[1] = (1, 0), (0, 1)
    vectors = [np.array(v, dtype=float) for v in product(range(-2, 3), repeat=2) if any(v)]
    best = {True: np.inf, False: np.inf}
    for first, second in product(vectors, repeat=2):
        basis = np.stack([first, second], 1)
        if abs(np.linalg.det(basis)) > 0:
            mixes = bool(((basis != 0).sum(0) > 1).any())
            best[mixes] = min(best[mixes], np.count_nonzero(jacobian @ basis))
    found = sparsity_gap(jacobian)
    assert (found.rho_plus[0], found.rho_minus[0]) == (best[False], best[True])


def test_a_change_of_basis_inside_factors_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    turn = np.zeros((4, 4))
    turn[:2, :2], turn[2:, 2:] = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
    found = sparsity_gap(overlapping(2) @ turn, blocks=BLOCKS, threshold=0.0)
    assert (found.rho_plus[0], found.rho_minus[0]) == (18, 19)


@pytest.mark.parametrize("shared", [0, 2])
def test_the_surrogate_bounds_the_exact_counts(shared: int) -> None:
    jacobian = overlapping(shared)
    exact = sparsity_gap(jacobian, blocks=BLOCKS)
    found = sparsity_gap(jacobian, blocks=BLOCKS, is_exact=False, num_restarts=8)
    assert not found.is_exact
    assert exact.rho_plus[0] <= found.rho_plus[0] <= exact.rho_plus[0] + 2
    assert exact.rho_minus[0] <= found.rho_minus[0] <= exact.rho_minus[0] + 2
    assert found.gap > 0


def test_the_surrogate_serves_large_jacobians_and_finds_a_missing_gap() -> None:
    rng = np.random.default_rng(0)
    jacobian = np.zeros((300, 6))
    for i in range(6):
        jacobian[50 * i : 50 * i + 70, i] = rng.normal(size=min(70, 300 - 50 * i))
    assert sparsity_gap(jacobian).gap > 0
    dense = jacobian @ np.linalg.qr(rng.normal(size=(6, 6)))[0]
    found = sparsity_gap(dense)
    assert not found.is_exact
    # In the wrong basis every aligned vector is dense, and mixing finds the sparse ones.
    assert found.gap < 0


def test_what_has_no_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="two factors or more"):
        sparsity_gap(np.eye(2), blocks=[(0, 1)])
    with pytest.raises(ValueError, match="loses rank"):
        sparsity_gap(np.ones((4, 2)))
