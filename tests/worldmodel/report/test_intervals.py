import doctest

import numpy as np
import pytest
from scipy import stats

from worldmodel.report import intervals
from worldmodel.report.intervals import (
    Estimate,
    bootstrap_interval,
    estimate_of,
    gap_closed,
    interval_text,
    jackknife_interval,
    mean_estimate,
    mean_interval,
    median_interval,
    ratio_estimate,
    share_estimate,
    wilson_interval,
    win_estimate,
)

NAN = float("nan")


def test_the_examples_in_the_docs() -> None:
    assert doctest.testmod(intervals).failed == 0


@pytest.mark.parametrize("count", [2, 3, 5, 10, 64])
def test_a_mean_has_students_interval(count: int) -> None:
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    error = values.std(ddof=1) / count**0.5
    expected = stats.t.interval(0.95, count - 1, values.mean(), error)
    assert mean_interval(values) == pytest.approx(expected, rel=1e-12)
    estimate = mean_estimate([*values, NAN])
    assert (estimate.low, estimate.high, estimate.count) == (*mean_interval(values), count)


def test_intervals_of_five_seeds_hold_the_mean_95_percent_of_the_time() -> None:
    # With 1.96 standard errors it would be 88 %.
    draws = np.random.default_rng(0).normal(2.0, 1.0, (4000, 5))
    holds = [low < 2.0 < high for low, high in map(mean_interval, draws)]
    assert np.mean(holds) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize(("hits", "trials"), [(10, 20), (20, 20), (0, 20), (3, 7), (950, 1000)])
def test_a_share_has_wilsons_interval(hits: int, trials: int) -> None:
    z, p = stats.norm.ppf(0.975), hits / trials
    half = z * (p * (1 - p) / trials + z**2 / (4 * trials**2)) ** 0.5
    ends = [(p + z**2 / (2 * trials) + side * half) / (1 + z**2 / trials) for side in (-1, 1)]
    assert wilson_interval(hits, trials) == pytest.approx(ends, abs=1e-12)


def test_wilson_interval_known_values() -> None:
    # Published example: 10 of 20 gives 0.299 to 0.701; it never leaves [0, 1].
    assert wilson_interval(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson_interval(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert wilson_interval(0, 20)[0] == 0.0
    # 48 of 48 only shows 93 %.
    estimate = share_estimate(48, 48)
    assert (estimate.mean, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(48 / (48 + 1.959964**2), abs=1e-6)
    assert np.isnan(wilson_interval(0, 0)).all()


def test_jackknife_of_a_mean_is_its_t_interval() -> None:
    values = np.random.default_rng(0).normal(size=10)
    found = jackknife_interval(values.mean(), lambda keep: float(values[keep].mean()), 10, blocks=10)
    assert found == pytest.approx(mean_interval(values))


def test_jackknife_holds_the_truth_as_often_as_it_says() -> None:
    # With 1.96 instead of t(9) = 2.26 it would be 92 %.
    samples = np.random.default_rng(1).normal(size=(3000, 100))
    found = [jackknife_interval(s.mean(), lambda keep, s=s: float(s[keep].mean()), 100) for s in samples]
    assert np.mean([low < 0 < high for low, high in found]) == pytest.approx(0.95, abs=0.012)


def test_median_interval_takes_the_binomial_ranks() -> None:
    # Of 0 .. 100 the ranks 0.5 +- 0.0975: 40.25 and 59.75.
    assert median_interval(np.arange(101.0)) == (40.0, 60.0)
    draws = np.random.default_rng(2).normal(size=(2000, 101))
    assert np.mean([low < 0 < high for low, high in map(median_interval, draws)]) > 0.94


def test_bootstrap_interval_is_that_of_percentiles() -> None:
    assert bootstrap_interval(np.linspace(0, 1, 2001)) == pytest.approx((0.025, 0.975))
    assert bootstrap_interval(np.array([0.0] * 50 + [np.inf] * 50 + [NAN])) == (0.0, np.inf)


def test_one_value_has_no_interval() -> None:
    for interval in (mean_interval(np.array([0.3])), jackknife_interval(0.3, lambda keep: 0.3, 1)):
        assert np.isnan(interval).all()
        assert interval_text(interval, 1) == "one point"
    assert interval_text((0.25, 0.5), 2) == "0.25 to 0.5"
    assert mean_estimate([2.5]).text(1) == "2.5"
    assert mean_estimate([1.0, 2.0]).text(1).startswith("1.5 [")
    assert gap_closed([0.0], [1.0], [2.0]).text() == "0.50"  # resampling one episode shows no spread


def test_what_is_missing_is_left_out() -> None:
    assert mean_estimate([NAN]).count == 0
    assert mean_estimate([]).text() == "-"
    assert mean_estimate([]).percent() == "-"
    assert gap_closed([0, NAN, 0], [1, 1, 1], [2, 2, NAN]).count == 1
    assert gap_closed([NAN], [1], [1]).count == 0


def test_share_of_the_gap_in_decibels_and_in_squared_error() -> None:
    rng = np.random.default_rng(0)
    floor = rng.normal(20, 1, 40)
    half = gap_closed(floor, floor + 5, floor + 10)
    assert half.mean == pytest.approx(0.5)
    assert half.low == pytest.approx(0.5)
    assert gap_closed([30.0], [26.0], [29.7], higher_is_better=True).count == 0  # nothing to gain
    assert gap_closed([0.1], [0.2], [0.3], higher_is_better=False).count == 0
    assert gap_closed([0.3], [0.2], [0.1], higher_is_better=False).mean == pytest.approx(0.5)
    errors = gap_closed([0.4, 0.4], [0.1, 0.1], [0.0, 0.0])
    assert errors.mean == pytest.approx(0.75)
    noisy = gap_closed(floor, floor + 5 + rng.normal(0, 1, 40), floor + 10)
    assert noisy.low < noisy.mean < noisy.high
    assert noisy.high - noisy.low == pytest.approx(2 * 1.96 * 0.1 / 40**0.5, rel=0.35)


def test_ratio_of_means_over_the_same_episodes() -> None:
    estimate = ratio_estimate([1.0, 3.0, 5.0], [4.0, 8.0, NAN])
    assert (estimate.mean, estimate.count) == (4 / 12, 2)
    assert estimate.low == pytest.approx(1 / 4)
    assert estimate.high == pytest.approx(3 / 8)


def test_ties_are_no_wins() -> None:
    estimate = win_estimate([3, 2, 1, NAN], [1, 2, 3, 0], higher_is_better=True)
    assert (estimate.mean, estimate.count) == (1 / 3, 3)
    assert win_estimate([0.1], [0.2], higher_is_better=False).mean == 1.0
    assert win_estimate([0.1999], [0.2], higher_is_better=False, tie=0.01).mean == 0.0


def test_estimates_survive_json() -> None:
    assert mean_estimate([1.0]).to_dict() == {"mean": 1.0, "low": None, "high": None, "count": 1}
    found = Estimate(0.5, 0.25, 0.75, 8)
    assert estimate_of(found.to_dict()) == found
    assert estimate_of(None).count == 0
    assert estimate_of(mean_estimate([1.0]).to_dict()).text(1) == "1.0"


@pytest.mark.filterwarnings("error")
def test_a_base_that_is_often_zero_gives_an_open_interval_without_a_warning() -> None:
    found = ratio_estimate([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 2.0])
    assert (found.mean, found.high) == (2.0, np.inf)
    assert 0 < found.low < 2
