import numpy as np
import pytest
import torch

from worldmodel.evaluation.metrics.clips import by_episode, holm, paired, score_clip


def moving_clip() -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.full((3, 16, 16), 0.5)
    real = given.expand(4, -1, -1, -1).clone()
    real[:, :, 4:8, 4:8] = torch.rand(4, 3, 4, 4).round()  # 64 pixels that move, all edges
    return real, given


def test_the_truth_is_perfect_and_a_blur_has_fewer_edges() -> None:
    real, given = moving_clip()
    perfect = score_clip(real, real, given)
    assert perfect.whole == perfect.moving == 100
    assert perfect.edges == 1
    halved = score_clip(given + (real - given) / 2, real, given)
    assert halved.edges == pytest.approx(0.25)


def test_moving_pixels_of_all_frames_count_together() -> None:
    real, given = moving_clip()
    made = real.clone()
    made[0, :, 4:8, 4:8] += 0.1  # one frame of four: a mean over frames would hold three perfect ones
    assert score_clip(made, real, given).moving == pytest.approx(20 - 10 * np.log10(1 / 4), abs=1e-4)
    made[:, :, 0, 0] += 0.5
    assert score_clip(made, real, given).moving == pytest.approx(26.0206, abs=1e-3)


def test_a_clip_in_which_nothing_moves_has_no_moving_score() -> None:
    real = torch.rand(2, 3, 16, 16)[:1].expand(2, -1, -1, -1)
    score = score_clip(real, real, real[0])
    assert (score.moving, score.edges) == (None, None)


def test_pairs_are_taken_by_episode_and_missing_ones_left_out() -> None:
    uids = ["a", "a", "b", "c", "d"]
    ours, theirs = (
        by_episode(uids, [21.0, 23.0, 20.0, None, 18.0]),
        by_episode(uids, [20.0, 20.0, 20.5, 3, 17]),
    )
    found = paired(ours, theirs)
    assert (found.episodes, found.ahead) == (3, 2)
    assert found.mean == pytest.approx((2 - 0.5 + 1) / 3)
    with pytest.raises(ValueError, match="2 episodes or more"):
        paired(ours[:1], theirs[:1])


def test_holm_stops_at_the_first_that_fails() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": True, "c": False, "b": False}
    assert all(holm({"a": 0.01, "b": 0.02, "c": 0.04}).values())


def test_equal_rows_have_no_lead() -> None:
    rng = np.random.default_rng(0)
    level = rng.normal(20, 2, 18)
    false = sum(paired(level + rng.normal(0, 0.3, 18), level).p < 0.05 for _ in range(400))
    assert 5 <= false <= 35  # 5 % of 400 is 20
