import pickle

import numpy as np

from worldmodel.data.synthetic import synthetic_source


def center_of(frames: np.ndarray, color: np.ndarray) -> np.ndarray:
    """(x, y) in [-1, 1] of the pixels of one color."""
    match = np.abs(frames.astype(float) - color).sum(-1) < 3
    grid = np.linspace(-1, 1, frames.shape[1])
    return np.array([[grid[np.nonzero(m)[1]].mean(), grid[np.nonzero(m)[0]].mean()] for m in match])


def test_shapes_go_where_the_actions_send_them() -> None:
    episode = synthetic_source(num_episodes=1, num_frames=17, size=(96, 96))[0]
    reader = episode.frames["head"]
    frames = reader.read(range(17))
    square = center_of(frames, reader.colors[2])  # drawn last, never hidden
    np.testing.assert_allclose(square[1:], 0.7 * episode.robot_actions[:, 2:4], atol=0.02)
    disc = synthetic_source(num_episodes=1, num_frames=17, size=(96, 96), action_dim=2)[0]
    seen = center_of(disc.frames["head"].read(range(17)), disc.frames["head"].colors[1])
    np.testing.assert_allclose(seen[1:], 0.7 * disc.robot_actions, atol=0.02)


def test_episodes_are_functions_of_seed_and_number() -> None:
    source = synthetic_source(num_episodes=4, embodiments=("a", "b"))
    again = pickle.loads(pickle.dumps(synthetic_source(num_episodes=9, embodiments=("a", "b"))))
    for i in range(4):
        np.testing.assert_array_equal(source[i].robot_actions, again[i].robot_actions)
        np.testing.assert_array_equal(source[i].frames["head"].read([5]), again[i].frames["head"].read([5]))
    assert [source[i].embodiment for i in range(4)] == ["a", "b", "a", "b"]
    assert not np.array_equal(source[0].robot_actions, source[2].robot_actions)
    assert not np.array_equal(source[0].robot_actions, synthetic_source(seed=1)[0].robot_actions)


def test_last_dimension_idles_and_the_others_move() -> None:
    actions = synthetic_source()[0].robot_actions
    assert actions.shape == (32, 14)
    assert (actions[:, -1] == 1).all()
    assert (np.ptp(actions[:, :-1], axis=0) > 0.1).all()
    assert np.abs(actions).max() <= 1
