import numpy as np
import pytest

from worldmodel.report.estimates import (
    gap_closed,
    mean_estimate,
    ratio_estimate,
    share_estimate,
    win_estimate,
)


def test_mean_and_its_t_interval():
    # t(0.975, 4) = 2.776; values 1..5: sd sqrt(2.5)
    estimate = mean_estimate([1.0, 2.0, 3.0, 4.0, 5.0, float("nan")])
    assert (estimate.mean, estimate.count) == (3.0, 5)
    assert estimate.high - 3 == pytest.approx(2.7764 * (2.5 / 5) ** 0.5, abs=1e-4)
    assert mean_estimate([float("nan")]).count == 0
    assert mean_estimate([]).text() == "-"


def test_t_intervals_hold_the_mean_95_percent_of_the_time():
    rng = np.random.default_rng(0)
    estimates = [mean_estimate(rng.normal(2.0, 1.0, 8)) for _ in range(1000)]
    assert np.mean([e.low < 2.0 < e.high for e in estimates]) == pytest.approx(0.95, abs=0.02)


def test_wilson_interval_of_all_hits():
    # The desk probe's remark: 48 of 48 only shows 93 to 94 %, 96 of 96 shows 96 %.
    estimate = share_estimate(48, 48)
    assert (estimate.mean, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(48 / (48 + 1.959964**2), abs=1e-6)


def test_share_of_the_gap_in_decibels_and_in_squared_error():
    rng = np.random.default_rng(0)
    floor = rng.normal(20, 1, 40)
    half = gap_closed(floor, floor + 5, floor + 10)
    assert half.mean == pytest.approx(0.5)
    assert half.low == pytest.approx(0.5)
    errors = gap_closed([0.4, 0.4], [0.1, 0.1], [0.0, 0.0])
    assert errors.mean == pytest.approx(0.75)
    noisy = gap_closed(floor, floor + 5 + rng.normal(0, 1, 40), floor + 10)
    assert noisy.low < noisy.mean < noisy.high
    assert noisy.high - noisy.low == pytest.approx(2 * 1.96 * 0.1 / 40**0.5, rel=0.35)


def test_episodes_without_a_number_are_left_out_in_all_rows():
    nan = float("nan")
    assert gap_closed([0, nan, 0], [1, 1, 1], [2, 2, nan]).count == 1
    assert gap_closed([nan], [1], [1]).count == 0


def test_ratio_of_means_over_the_same_episodes():
    estimate = ratio_estimate([1.0, 3.0, 5.0], [4.0, 8.0, float("nan")])
    assert (estimate.mean, estimate.count) == (4 / 12, 2)
    assert estimate.low == pytest.approx(1 / 4)
    assert estimate.high == pytest.approx(3 / 8)


def test_one_seed_has_no_interval():
    assert mean_estimate([2.5]).text(1) == "2.5"
    assert mean_estimate([1.0, 2.0]).text(1).startswith("1.5 [")


def test_ties_are_no_wins():
    estimate = win_estimate([3, 2, 1, float("nan")], [1, 2, 3, 0], higher_is_better=True)
    assert (estimate.mean, estimate.count) == (1 / 3, 3)
    assert win_estimate([0.1], [0.2], higher_is_better=False).mean == 1.0
    assert win_estimate([0.1999], [0.2], higher_is_better=False, tie=0.01).mean == 0.0


def test_json_has_no_infinite_numbers():
    assert mean_estimate([1.0]).to_dict() == {"mean": 1.0, "low": None, "high": None, "count": 1}


@pytest.mark.filterwarnings("error")
def test_a_base_that_is_often_zero_gives_an_open_interval_without_a_warning():
    found = ratio_estimate([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 2.0])
    assert (found.mean, found.high) == (2.0, np.inf)
    assert 0 < found.low < 2
