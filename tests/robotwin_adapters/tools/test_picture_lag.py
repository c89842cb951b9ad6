"""A picture that moves seven frames behind its commands is measured as such."""

from dataclasses import replace

import numpy as np
import pytest

from robotwin_adapters.tools.picture_lag import measure_picture_lag, small_pictures
from worldmodel.data.synthetic import synthetic_source


class Bright:
    size = (8, 8)

    def __init__(self, levels: np.ndarray) -> None:
        self.levels = levels

    def __len__(self) -> int:
        return len(self.levels)

    def read(self, indices):
        return np.tile(self.levels[list(indices)][:, None, None, None], (1, 8, 8, 3)).astype(np.uint8)


@pytest.mark.parametrize("lag", [1, 7])
@pytest.mark.parametrize("is_delta", [False, True])
def test_the_lag_of_a_picture(lag: int, is_delta: bool) -> None:
    speed = np.repeat(np.random.default_rng(0).uniform(0, 1, 30), 6)[:150]
    # The command of lag 1 is the one that leads to a frame.
    levels = 60 + np.cumsum(np.concatenate([np.zeros(lag), speed]))[:151]
    actions = speed if is_delta else np.cumsum(speed)
    episode = replace(
        synthetic_source(1, 151, size=(8, 8), fps=30.0, action_dim=2)[0],
        action_names=("joint0",),
        robot_actions=actions[:, None],
        delta_actions=("joint0",) if is_delta else (),
    )
    pictures = small_pictures(Bright(levels))
    found = measure_picture_lag([episode], [pictures])
    assert found is not None
    assert (found.frames, round(found.seconds, 3)) == (lag, round(lag / 30, 3))
    assert f"by {lag} recorded frame(s)" in str(found)
    assert "not clear" in str(replace(found, correlation=0.1))
    assert measure_picture_lag([episode], [0 * pictures]) is None
    assert measure_picture_lag([episode], [pictures[:9]]) is None
