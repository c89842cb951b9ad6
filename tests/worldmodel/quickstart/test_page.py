"""The plain words of the quickstart report follow from its figures."""

import math

import pytest

from worldmodel.quickstart.page import in_short, judgment, moving_error


def rows(true: float, static: float, ceiling: float, moving: float = 14.0) -> dict:
    whole = {"true": true, "static": static, "autoencoder": ceiling}
    parts = {"true": moving, "static": 12.0, "autoencoder": 20.0}
    return {
        name: {"clip_psnr": {"mean": whole[name]}, "moving_psnr": {"mean": parts[name]}} for name in whole
    }


def test_a_good_model_is_compared_with_floor_and_ceiling() -> None:
    assert in_short(rows(26.0, 22.0, 30.0), 8, 400, is_followed=True) == (
        "The model is 4.0 dB above the static frame on whole pictures and "
        "2.0 dB above the static frame on moving pixels. "
        "The autoencoder shows what is possible: 8.0 dB above that frame there. "
        "It follows the actions: wrong ones give worse pictures."
    )


def test_what_is_wrong_is_said_with_what_mends_it() -> None:
    words = in_short(rows(25.4, 29.0, 30.1, moving=11.0), 1, 248, is_followed=False)
    assert "3.6 dB below the static frame on whole pictures and 1.0 dB below" in words
    assert "follow the actions" not in words
    assert "leaves 1.1 dB of room" in words
    assert "After 248 steps it does not yet keep still what stands still" in words
    assert "1 held-out episode cannot show that actions are followed, 4 could" in words


def test_a_run_that_has_hardly_begun_says_so() -> None:
    words = in_short(rows(21.0, 22.0, 30.0), 8, 22, is_followed=False)
    assert "22 steps are very few" in words
    assert "does not follow the actions yet" in words
    assert "keep still" not in words  # more steps are the answer to everything


def test_comparisons_stand_in_a_table_and_other_reasons_stay() -> None:
    wins = {"mean": 0.5, "low": 0.2, "high": 0.8, "count": 8}
    reasons = ["static frame: true actions are better in 50% of 8 episodes", "No visible response to x."]
    checks = {
        name: {"is_passed": name == "null", "wins": wins} for name in ("null", "shuffled", "static frame")
    }
    checks["shifted"] = {"is_passed": False, "wins": {**wins, "count": 0}}
    results = {
        "verdict": "Not followed.",
        "is_followed": False,
        "reasons": reasons,
        "checks": checks,
        "rule": "R",
    }
    verdict, table = judgment(results)
    assert verdict.reasons[1:] == ("No visible response to x.",)
    assert [row[0] for row in table.rows] == [
        "no actions",
        "shuffled actions",
        "static frame",
        "shifted actions",
    ]
    assert table.rows[3][1] == "none differs enough to count"
    assert table.rows[1][1:] == ("50 % [20, 80] of 8", "no")
    assert (table.rows[0][2], table.note) == ("yes", "R")


def test_clips_are_ordered_by_the_error_of_what_moves() -> None:
    assert moving_error({"rows": {"true": {"moving_mse": [0.1, None, 0.3]}}}) == pytest.approx(0.2)
    assert moving_error({"rows": {"true": {"moving_mse": [None, None]}}}) == math.inf
