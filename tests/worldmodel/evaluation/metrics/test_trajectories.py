import numpy as np
import pytest

from worldmodel.evaluation.metrics.trajectories import fill_gaps, trajectory_accuracy, warped_distance


def track(seed: int, count: int, shift: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, count)[:, None]
    far = rng.uniform(0.2, 0.8, 2) + 0.2 * np.concatenate([np.sin(3 * t + seed), np.cos(2 * t + seed)], 1)
    near = rng.uniform(0.2, 0.8, 2) + 0.05 * np.concatenate([np.sin(3 * t), np.cos(2 * t)], 1)
    return np.stack([far, near], 1) + shift


# The numbers were made by `traj_interpo_fill`, `select_farthest_traj_index` and `NDTW` of WorldArena
# (1674b79, fastdtw 0.3) on these tracks, outside this project.
@pytest.mark.parametrize(
    ("seed", "real_length", "made_length", "shift", "expected"),
    [
        (0, 17, 17, 0.02, 47.687500),
        (1, 33, 29, 0.05, 27.587572),
        (2, 49, 49, 0.01, 105.898553),
        (3, 17, 17, 0.1, 9.961231),
        (4, 21, 49, 0.03, 45.455158),
        (5, 9, 9, 0.0, 15.099668),
        (6, 61, 61, 0.004, 149.887547),
        (7, 17, 17, 0.02, 49.677322),
        (8, 17, 17, 0.02, 0.0),
        (9, 97, 97, 0.05, 21.822335),
    ],
)
def test_agrees_with_worldarena(
    seed: int, real_length: int, made_length: int, shift: float, expected: float
) -> None:
    real = track(seed, real_length).astype(np.float32)
    noise = np.random.default_rng(seed + 9).normal(0, 0.004, (made_length, 2, 2))
    made = (track(seed, made_length, shift) + noise).astype(np.float32)
    if seed % 3 == 2:
        made[5:9, 0] = made[0, 0] = -1
    if seed == 7:
        real[1:, 0] = -1  # hardly seen in the truth: the other arm counts
    if seed == 8:
        made[1:, 0] = -1  # hardly seen in the made video: no score
    assert trajectory_accuracy(made, real) == pytest.approx(expected, rel=1e-3)


def test_a_gripper_that_is_never_found_scores_nothing() -> None:
    assert trajectory_accuracy(np.full((9, 2, 2), -1.0), track(0, 9)) == 0.0


def test_gaps_are_lines_and_ends_are_held() -> None:
    gaps = np.array([[-1, -1], [0.2, 0.4], [-1, -1], [0.4, 0.8], [-1, -1]])
    expected = [[0.2, 0.4], [0.2, 0.4], [0.3, 0.6], [0.4, 0.8], [0.4, 0.8]]
    np.testing.assert_allclose(fill_gaps(gaps), expected)


def test_a_slower_track_on_the_same_path_is_no_farther() -> None:
    path = np.linspace([0.0, 0.0], [1.0, 0.0], 5)
    assert warped_distance(path, path.repeat(2, axis=0)) == (0.0, 10)
