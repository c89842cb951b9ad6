"""The plain words of the quickstart report follow from its figures."""

import math

import pytest

from worldmodel.quickstart.page import headline, in_short, judgment
from worldmodel.quickstart.pictures import chosen_clips, moving_error


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
    assert "More minutes help first" in words
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


def test_too_few_episodes_are_no_finding_anywhere_on_the_page() -> None:
    wins = {"mean": 0.0, "low": 0.0, "high": 0.8, "count": 1}
    results = {
        "verdict": "The actions are not followed.",
        "is_followed": False,
        "reasons": [],
        "checks": {"null": {"is_passed": False, "wins": wins}},
        "rule": "R",
    }
    for verdict in (judgment(results)[0], headline(results, "")):
        assert verdict.title == "Whether actions are followed is not shown: too few held-out episodes."
        assert verdict.is_good is None


def test_clips_are_ordered_by_the_error_of_what_moves() -> None:
    assert moving_error({"rows": {"true": {"moving_mse": [0.1, None, 0.3]}}}) == pytest.approx(0.2)
    assert moving_error({"rows": {"true": {"moving_mse": [None, None]}}}) == math.inf


def record(error: float | None) -> dict:
    return {"rows": {"true": {"moving_mse": [error]}}}


def test_the_page_shows_the_best_and_the_worst_clip() -> None:
    records = {"a#0": record(0.3), "b#0": record(0.1), "c#0": record(None), "d#0": record(0.2)}
    assert chosen_clips(records) == {"best": "b#0", "worst": "c#0"}
    assert chosen_clips({"a#0": record(0.3)}) == {"best": "a#0"}


def verdict(shares: dict[str, float], count: int, reasons: tuple[str, ...] = ()) -> dict:
    checks = {
        name: {
            "is_passed": share > 0.9,
            "wins": {"mean": share, "low": 0.0, "high": 1.0, "count": count},
        }
        for name, share in shares.items()
    }
    is_followed = min(shares.values()) > 0.9 and not reasons
    said = "The actions are followed." if is_followed else "The actions are not followed."
    return {"verdict": said, "is_followed": is_followed, "reasons": reasons, "checks": checks}


def test_the_verdict_is_one_sentence_with_its_count() -> None:
    found = headline(verdict({"null": 1.0, "reversed": 1.0}, 19), "Words.")
    assert (found.is_good, found.reasons) == (True, ("Words.",))
    assert found.title == (
        "The actions are followed: in 19 of 19 held-out episodes, true ones give a better video than any "
        "wrong ones."
    )
    assert "in 19 of 20 held-out episodes or more" in headline(verdict({"null": 0.95}, 20), "").title
    weak = headline(verdict({"null": 1.0, "reversed": 0.75}, 8), "")
    assert weak.is_good is False
    assert weak.title.endswith("true ones beat the best wrong ones in 6 of 8 held-out episodes.")
    few = headline(verdict({"null": 1.0}, 3), "")
    assert few.is_good is None
    assert "too few held-out episodes" in few.title
    scale = headline(verdict({"null": 1.0}, 8, ("Their scale is wrong.",)), "")
    assert scale.title == "The actions are not followed. Their scale is wrong."
