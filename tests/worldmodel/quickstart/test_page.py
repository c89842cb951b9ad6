"""The plain words of the quickstart report follow from its figures."""

from worldmodel.quickstart.page import in_short


def rows(true: float, static: float, ceiling: float, moving: float = 14.0) -> dict:
    whole = {"true": true, "static": static, "autoencoder": ceiling}
    parts = {"true": moving, "static": 12.0, "autoencoder": 20.0}
    return {
        name: {"clip_psnr": {"mean": whole[name]}, "moving_clip_psnr": {"mean": parts[name]}}
        for name in whole
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
