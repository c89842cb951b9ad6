import numpy as np
import pytest
from sklearn.metrics import r2_score

from worldmodel.diagnostics.identifiability.representation_maps import (
    apply_match,
    epsilon,
    fit_affine,
    fit_rigid,
    match,
    mean_correlation,
    r_squared,
)


def random(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def test_affine_and_rigid_maps_undo_what_they_allow() -> None:
    x = random(50, 3)
    turn = np.linalg.qr(random(3, 3, 1))[0]
    moved = 2.0 * x @ turn + [1.0, -2.0, 0.0]
    np.testing.assert_allclose(fit_affine(moved, x)(x), moved)
    np.testing.assert_allclose(fit_rigid(moved, x, scaled=True)(x), moved)
    assert epsilon(moved, fit_rigid(moved, x)(x)).value == pytest.approx(0.5)  # half the size is missing
    mirrored = x * [-1, 1, 1]
    np.testing.assert_allclose(fit_rigid(mirrored, x)(x), mirrored, atol=1e-12)


def test_rigid_maps_between_different_dimensions() -> None:
    x = random(200, 2)
    embedded = x @ np.linalg.qr(random(5, 2, 3))[0].T
    np.testing.assert_allclose(fit_rigid(embedded, x)(x), embedded, atol=1e-10)
    np.testing.assert_allclose(fit_rigid(x, embedded)(embedded), x, atol=1e-10)


def test_r_squared_is_that_of_scikit_learn() -> None:
    y = random(100, 3)
    predicted = y + 0.3 * random(100, 3, 1)
    assert r_squared(y, predicted).value == pytest.approx(r2_score(y, predicted))


def test_matching_finds_order_and_sign_and_leaves_gaps() -> None:
    y = random(300, 4)
    source = np.stack([-y[:, 2], 3 * y[:, 0], random(300, 1, 9)[:, 0], y[:, 1]], axis=1)[:, [0, 1, 3]]
    order, sign = match(y, source)
    assert order.tolist() == [1, 2, 0, -1]
    assert sign.tolist() == [1, 1, -1, 0]
    matched = apply_match(source, order, sign)
    assert mean_correlation(y, matched).value == pytest.approx(3 / 4)


def test_bootstrap_interval_of_a_mean_error_is_its_standard_error() -> None:
    y = random(2000, 1)
    score = epsilon(y, y + 0.5 * random(2000, 1, 1))
    weights = np.random.default_rng(0).multinomial(2000, np.full(2000, 1 / 2000), size=400) / 2000
    estimate = score.estimate(weights)
    assert estimate.value == pytest.approx(0.5, abs=0.03)
    # sqrt(E e^2 / var y): both relative errors are sqrt(2/n), so that of the root is sqrt(1/n)
    assert estimate.interval[1] - estimate.interval[0] == pytest.approx(2 * 1.96 * 0.5 / 2000**0.5, rel=0.25)
