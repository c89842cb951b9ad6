"""Angles that wrap are cut where they never are, the same in all episodes."""

from dataclasses import replace

import numpy as np
import pytest

from robotwin_adapters.angles import cut_angles, find_cuts
from robotwin_adapters.labeled import LabeledDataset
from robotwin_adapters.mapping import DataMapping
from tests.robotwin_adapters.lerobot.test_write import Episodes
from worldmodel.data.synthetic import synthetic_source


def wrapped(angles: np.ndarray, turn: float) -> np.ndarray:
    return (angles + turn / 2) % turn - turn / 2


@pytest.mark.parametrize("turn", [360.0, 2 * np.pi])
def test_angles_around_half_a_turn_run_through(turn: float) -> None:
    true = turn * (0.5 + 0.08 * np.sin(np.linspace(0, 9, 60)))
    parts = [np.stack([wrapped(true, turn), np.linspace(0, 1, 60)], 1), np.full((5, 2), 0.45 * turn)]
    cuts = find_cuts(parts)
    assert list(cuts) == [0]
    moved = cut_angles(parts[0], cuts)
    np.testing.assert_allclose(np.diff(moved[:, 0]), np.diff(true), atol=1e-9)
    np.testing.assert_allclose(wrapped(moved[:, 0], turn), parts[0][:, 0], atol=1e-9)
    assert abs(cut_angles(parts[1], cuts)[0, 0] - moved[:, 0].mean()) < 0.2 * turn  # another episode, near it
    np.testing.assert_array_equal(moved[:, 1], parts[0][:, 1])


def test_what_is_no_angle_or_goes_all_around_stays() -> None:
    around = wrapped(np.linspace(0, 1500, 400), 360.0)[:, None]
    assert find_cuts([around]) == {}
    assert find_cuts([np.array([[0.0], [360.0], [720.0], [1080.0]])]) == {}


def test_every_reader_unwraps_unless_the_mapping_keeps() -> None:
    angles = wrapped(180 + 20 * np.sin(np.linspace(0, 9, 8)), 360.0)
    first = synthetic_source(1, 9, size=(16, 16), action_dim=2)[0]
    actions = np.stack([angles, np.zeros(8)], 1)
    made = Episodes([replace(first, robot_actions=actions, robot_states=None, delta_actions=None)])
    episode = LabeledDataset(made)[0]
    assert np.ptp(episode.robot_actions[:, 0]) < 41
    assert any("actions joint0 jump by a full turn" in note for note in episode.notes)
    kept = LabeledDataset(made, DataMapping(angles="keep"))[0]
    np.testing.assert_array_equal(kept.robot_actions, actions)


def test_a_switch_between_two_values_a_turn_apart_is_no_angle() -> None:
    closed = np.repeat([-3.0, 3.0, -3.0, 3.0], 20)[:, None]  # as a hand of the GR1 set is commanded
    assert find_cuts([closed]) == {}
