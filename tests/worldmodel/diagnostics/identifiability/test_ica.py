import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from worldmodel.diagnostics import IcaAligner, mcc
from worldmodel.diagnostics.identifiability.ica import negentropy


def sources(kind: str, n: int = 4000, d: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return {
        "uniform": rng.uniform(-1, 1, (n, d)),
        "laplace": rng.laplace(size=(n, d)),
        "normal": rng.normal(size=(n, d)),
    }[kind]


def mixing(d: int, k: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(d, k))


@pytest.mark.parametrize("kind", ["uniform", "laplace"])
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed_independent_sources_are_recovered_and_stable(kind: str, seed: int) -> None:
    s = sources(kind, seed=seed)
    ica = IcaAligner(restarts=3).fit(s @ mixing(4, 6, seed))
    assert mcc(s, ica.transform(s @ mixing(4, 6, seed))).value > 0.98
    assert (ica.num_components_, ica.converged_.all()) == (4, True)
    assert ica.stability_.min() > 0.9


def test_gaussian_sources_cannot_be_recovered_and_a_warning_says_so() -> None:
    s = sources("normal")
    turn = np.linalg.qr(mixing(4, 4))[0]
    with pytest.warns(UserWarning, match="look Gaussian"):
        ica = IcaAligner(restarts=4, max_iter=300).fit(s @ turn)
    assert mcc(s, ica.transform(s @ turn)).value < 0.9
    assert ica.stability_.mean() < 0.8


def test_dead_directions_are_dropped_before_whitening() -> None:
    s = sources("uniform")
    x = np.concatenate([s @ mixing(4, 4), 1e-3 * sources("laplace", d=3, seed=5)], axis=1)
    pruned = IcaAligner(restarts=2).fit(x)
    kept = IcaAligner(restarts=1, dead_below=0.0).fit(x)
    assert (pruned.num_components_, kept.num_components_) == (4, 7)
    assert pruned.kept_variance_ > 0.999
    assert IcaAligner(num_components=2, restarts=1).fit(x).num_components_ == 2


def test_components_have_unit_variance_fixed_order_and_sign() -> None:
    x = sources("laplace") * [1.0, 4.0, 2.0, 3.0] @ np.linalg.qr(mixing(4, 4))[0]
    ica = IcaAligner(restarts=2).fit(x)
    np.testing.assert_allclose(ica.transform(x).std(0), 1.0, atol=1e-3)
    size = np.square(ica.mixing_).sum(0)
    assert (np.diff(size) < 0).all()
    assert (ica.mixing_[np.abs(ica.mixing_).argmax(0), np.arange(4)] > 0).all()
    again = IcaAligner(restarts=2, seed=100).fit(x)
    np.testing.assert_allclose(again.transform(x), ica.transform(x), atol=0.05)
    np.testing.assert_allclose(ica.inverse_transform(ica.transform(x)), x, atol=1e-8)


def test_the_restart_with_the_highest_negentropy_is_kept() -> None:
    ica = IcaAligner(restarts=4).fit(sources("uniform") @ mixing(4, 4))
    kept = negentropy(ica.transform(sources("uniform") @ mixing(4, 4))).sum()
    assert kept == pytest.approx(ica.negentropy_.max(), rel=1e-3)


def test_negentropy_is_zero_for_normal_and_positive_otherwise() -> None:
    rng = np.random.default_rng(0)
    normal, uniform = rng.normal(size=(200_000, 1)), rng.uniform(-(3**0.5), 3**0.5, (200_000, 1))
    assert negentropy(normal)[0] < 1e-5
    # E log cosh of the uniform variable with unit variance is 0.401338 (by quadrature).
    assert negentropy(uniform)[0] == pytest.approx((0.401338 - 0.374567) ** 2, rel=0.1)
    assert np.isfinite(negentropy(np.array([[1e4]]))).all()


def test_kurtosis_is_reported() -> None:
    s = np.stack([sources("uniform")[:, 0], sources("laplace")[:, 1] / 2], axis=1)
    found = np.sort(IcaAligner(restarts=1).fit(s @ mixing(2, 2)).kurtosis_)
    assert found == pytest.approx([-1.2, 3.0], abs=0.6)


def test_failure_to_converge_is_said() -> None:
    with pytest.warns(ConvergenceWarning, match="did not converge in 1 iterations"):
        IcaAligner(restarts=1, max_iter=1, tol=1e-12).fit(sources("uniform") @ mixing(4, 4))


def test_scikit_learn_conventions_and_bad_input() -> None:
    ica = IcaAligner(restarts=1)
    assert clone(ica).get_params() == ica.get_params()
    with pytest.raises(NotFittedError):
        ica.transform(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="constant"):
        ica.fit(np.ones((10, 2)))
    with pytest.raises(ValueError, match="n > d"):
        ica.fit(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="restarts"):
        IcaAligner(restarts=0).fit(np.zeros((10, 2)))
