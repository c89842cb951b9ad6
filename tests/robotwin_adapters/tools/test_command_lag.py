"""Known answers: arms that follow their commands by a rule we choose."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from robotwin_adapters.tools.command_lag import commanded_and_measured, measure_lag
from tests.support.pose_sets import NAMES, moving_poses
from worldmodel.data.synthetic import synthetic_source
from worldmodel.models.actions.pose_maps import apply_command_lag
from worldmodel.types import Episode


def first_order(commands: np.ndarray, kept: float) -> np.ndarray:
    """Each frame the arm keeps this share of its distance to the command: [t a] of [t-1 a] commands."""
    measured = [commands[0]]
    for command in commands:
        measured.append(command + kept * (measured[-1] - command))
    return np.stack(measured)


def smooth(count: int, seed: int = 0, columns: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    time = np.arange(count)[:, None] / count
    turns = [2 * np.pi * (number * time + rng.random(columns)) for number in (1, 2)]
    return sum(rng.normal(0, 0.3, columns) * np.sin(turn) for turn in turns)


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.5])
def test_a_first_order_lag_is_found_at_every_pace(kept: float, step: int) -> None:
    # On a steady motion the arm stays kept / (1 - kept) recorded motions behind.
    parts = [(commands, first_order(commands, kept)) for commands in (smooth(400, seed) for seed in range(3))]
    lag = measure_lag(parts, "xyz", step)
    assert lag is not None
    assert lag.share == pytest.approx(kept / (1 - kept) / step, abs=0.01)
    assert lag.remaining <= 0.05 * lag.distance + 1e-12
    assert lag.num_rows == 3 * (400 - step)


def test_the_lag_is_the_one_that_hands_are_drawn_by() -> None:
    """`apply_command_lag` with the measured lag gives back the measured poses."""
    poses = moving_poses(60)
    measured = poses.copy()
    measured[1:] += 0.3 * (poses[:-1] - poses[1:])
    lag = measure_lag([(poses, np.concatenate([poses[:1], measured]))], NAMES, 1)
    assert lag is not None
    assert lag.share == pytest.approx(0.3, abs=1e-5)
    commands = torch.from_numpy(poses)
    drawn = apply_command_lag(commands[1:], commands[:-1], lag.share)
    assert np.allclose(drawn, measured[1:], atol=1e-5)


def test_what_a_lag_does_not_explain_is_not_suggested() -> None:
    commands = smooth(200)
    noise = np.random.default_rng(1).normal(0, 0.2, (201, 3))
    noisy = measure_lag([(commands, np.concatenate([commands[:1], commands]) + noise)], "xyz", 1)
    far = measure_lag([(commands, first_order(commands, 0.8))], "xyz", 1)
    assert noisy is not None
    assert far is not None
    assert not noisy.is_explained
    assert not far.is_explained
    assert far.share > 1
    assert measure_lag([(commands[:9], commands[:10])], "xyz", 1) is None  # too few rows
    assert measure_lag([(np.ones((99, 2)), np.ones((100, 2)))], "xy", 1) is None  # nothing moves


def recorded(names: tuple[str, ...], states: tuple[str, ...], **changes: object) -> Episode:
    commands = smooth(120, columns=len(names))
    base = synthetic_source(1, 121, size=(16, 16))[0]
    return replace(
        base,
        robot_actions=commands,
        action_names=names,
        robot_states=first_order(commands, 0.4)[:, : len(states)],
        state_names=states,
        delta_actions=(),
        action_space="",
        **changes,
    )


def test_columns_are_found_by_name_or_place_and_grippers_are_left_out() -> None:
    joints = recorded(("joint1", "joint2", "gripper"), ("joint1", "joint2", "gripper"))
    assert commanded_and_measured([joints])[1] == ("joint1", "joint2")
    by_place = recorded(("action_0", "action_1"), ("state_0", "state_1"))
    parts, names = commanded_and_measured([by_place, by_place])
    assert (len(parts), names) == (2, ("action_0", "action_1"))
    poses = recorded(("x", "y", "roll"), ("x", "y", "roll"))
    assert commanded_and_measured([poses])[1] == ("x", "y")
    assert commanded_and_measured([replace(poses, delta_actions=("x",))])[1] == ("y",)


def test_nothing_is_measured_without_both() -> None:
    joints = recorded(("joint1", "joint2"), ("joint1", "joint2"))
    next_state = replace(joints, robot_actions=joints.robot_states[1:])
    other = replace(joints, robot_states=np.random.default_rng(0).normal(0, 1, (121, 2)))
    for episode in (replace(joints, robot_states=None), next_state, other):
        assert commanded_and_measured([episode]) == ([], ())
    assert commanded_and_measured([replace(joints, action_space="measured_poses")]) == ([], ())
