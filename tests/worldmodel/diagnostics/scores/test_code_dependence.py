import numpy as np
import pytest
from scipy.linalg import sqrtm

from worldmodel.diagnostics import gaussian_total_correlation, wasserstein_correlation


def codes_with(covariance: np.ndarray, num_samples: int = 50) -> np.ndarray:
    """Samples whose own covariance is exactly the given one."""
    raw = np.random.default_rng(0).normal(size=(num_samples, len(covariance)))
    white = np.linalg.qr(raw - raw.mean(0))[0] * np.sqrt(num_samples - 1)
    return white @ np.linalg.cholesky(covariance).T + 3


PAIR = codes_with(np.array([[1.0, 0.9], [0.9, 1.0]]))


def test_two_correlated_codes_have_their_closed_forms() -> None:
    assert gaussian_total_correlation(PAIR) == pytest.approx(0.830366, abs=1e-6)  # -ln(1 - 0.81) / 2
    # Equal variances: the eigenvalues 1.9 and 0.1 of the covariance give the roots.
    expected = 4 - 2 * (np.sqrt(1.9) + np.sqrt(0.1))
    assert wasserstein_correlation(PAIR) == pytest.approx(expected)
    assert wasserstein_correlation(PAIR, normalized=True) == pytest.approx(expected / 2)


def test_uncorrelated_codes_have_none() -> None:
    codes = codes_with(np.diag([1.0, 4.0, 25.0]))
    assert gaussian_total_correlation(codes) == pytest.approx(0, abs=1e-12)
    assert wasserstein_correlation(codes) == pytest.approx(0, abs=1e-12)


def test_unequal_variances_agree_with_the_general_formulas() -> None:
    covariance = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 9.0]])
    codes = codes_with(covariance)
    marginal = np.diag(np.diag(covariance))
    divergence = 0.5 * np.log(np.linalg.det(marginal) / np.linalg.det(covariance))
    assert gaussian_total_correlation(codes) == pytest.approx(divergence)
    distance = 2 * np.trace(covariance) - 2 * np.trace(sqrtm(marginal @ covariance)).real
    assert wasserstein_correlation(codes) == pytest.approx(distance)
    # Only the distance has units.
    assert gaussian_total_correlation(1e4 * codes) == pytest.approx(divergence)
    assert wasserstein_correlation(10 * codes) == pytest.approx(100 * distance)


def test_constant_codes_depend_on_nothing_and_repeated_ones_on_everything() -> None:
    padded = np.hstack([PAIR, np.full((50, 2), 0.7)])
    assert gaussian_total_correlation(padded) == pytest.approx(gaussian_total_correlation(PAIR))
    assert wasserstein_correlation(padded) == pytest.approx(wasserstein_correlation(PAIR))
    assert gaussian_total_correlation(np.hstack([PAIR, PAIR])) == np.inf
    assert gaussian_total_correlation(np.ones((5, 3))) == 0
    assert wasserstein_correlation(np.ones((5, 3)), normalized=True) == 0
    with pytest.raises(ValueError, match="at least 2 samples"):
        gaussian_total_correlation(PAIR[:1])
