import numpy as np
import pytest

from worldmodel.report.intervals import interval_text, jackknife_interval, mean_interval, wilson_interval


def test_wilson_interval_known_values() -> None:
    # Published example: 10 of 20 gives 0.299 to 0.701; it never leaves [0, 1].
    assert wilson_interval(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson_interval(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert wilson_interval(0, 20)[0] == 0.0


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=10)
    low, high = jackknife_interval(values.mean(), lambda keep: float(values[keep].mean()), 10, blocks=10)
    assert (low, high) == pytest.approx(mean_interval(values))


def test_jackknife_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        sample = rng.normal(size=200)
        low, high = jackknife_interval(sample.mean(), lambda keep, s=sample: float(s[keep].mean()), 200)
        covered += low < 0 < high
    assert 0.85 < covered / 200 < 0.99


def test_one_value_has_no_interval() -> None:
    for interval in (mean_interval(np.array([0.3])), jackknife_interval(0.3, lambda keep: 0.3, 1)):
        assert np.isnan(interval).all()
        assert interval_text(interval, 1) == "one point"
    assert interval_text((0.25, 0.5), 2) == "0.25 to 0.5"
