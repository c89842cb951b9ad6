"""Sampling against the published ranges and a separate simulation of RoboTwin's rules; the success rule."""

import math

import mujoco
import numpy as np
import pytest

from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.scene import Scene, SceneSpec, build_scene
from robotwin_adapters.tabletop.tasks import (
    GOAL_OFFSET,
    TASKS,
    arm_side,
    goal_shift,
    is_success,
    sample_setup,
)

FINCH = EMBODIMENTS["finch"]
OPEN = {"left": 1.0, "right": 1.0}


def draw(task: str, count: int, clutter: int = 0) -> list[SceneSpec]:
    rng = np.random.default_rng(0)
    return [sample_setup(task, FINCH, rng, clutter) for _ in range(count)]


@pytest.mark.parametrize("task", ["place_a2b_left", "place_a2b_right"])
def test_samples_obey_the_ranges_and_the_acceptance_rule(task: str) -> None:
    mirror = 1 if task == "place_a2b_left" else -1
    for setup in draw(task, 400):
        a, b = setup.place_a, setup.place_b
        assert abs(a.x) <= 0.22
        assert -0.20 <= a.y <= 0.0
        assert -0.20 <= b.y <= 0.0
        assert abs(b.y - a.y) >= 0.1
        low, high = (0.18, 0.23) if mirror * a.x > 0 else (-0.10, 0.10)
        assert low <= mirror * b.x <= high
        assert math.hypot(a.x - b.x, a.y - b.y) > 0.19 or mirror * a.x > mirror * b.x
        assert setup.object_a != setup.object_b


@pytest.mark.parametrize(("task", "right_share"), [("place_a2b_left", 0.436), ("place_a2b_right", 0.566)])
def test_statistics_agree_with_the_reference_simulation(task: str, right_share: float) -> None:
    setups = draw(task, 2000)
    a = np.array([(setup.place_a.x, setup.place_a.y) for setup in setups])
    b = np.array([(setup.place_b.x, setup.place_b.y) for setup in setups])
    travel = np.linalg.norm(b - a + np.array([goal_shift(task), 0.0]), axis=1)
    correct_side = np.sign(a[:, 0] - b[:, 0]) == np.sign(goal_shift(task))
    assert np.linalg.norm(a - b, axis=1).mean() == pytest.approx(0.208, abs=0.004)
    assert travel.mean() == pytest.approx(0.16, abs=0.01)
    assert travel.max() < 0.30
    assert np.mean([arm_side(setup) == "right" for setup in setups]) == pytest.approx(right_share, abs=0.03)
    assert correct_side.mean() == pytest.approx(0.79, abs=0.03)


def test_clutter_keeps_its_distance() -> None:
    for setup in draw("place_a2b_right", 30, clutter=8):
        assert len(setup.clutter) == 8
        goal = (setup.place_b.x + GOAL_OFFSET, setup.place_b.y)
        for thing, place in setup.clutter:
            assert thing not in (setup.object_a, setup.object_b)
            to_a = math.hypot(place.x - setup.place_a.x, place.y - setup.place_a.y)
            to_b = math.hypot(place.x - setup.place_b.x, place.y - setup.place_b.y)
            assert to_a > setup.object_a.radius + 0.05 + thing.radius
            assert to_b > setup.object_b.radius + 0.10 + thing.radius
            assert math.dist((place.x, place.y), goal) > setup.object_a.radius + thing.radius


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"place_a2b_left.*'juggle'"):
        sample_setup("juggle", FINCH, np.random.default_rng(0))


def scene_with_a_at(dx: float, dy: float) -> Scene:
    scene = build_scene(sample_setup("place_a2b_left", FINCH, np.random.default_rng(1)))
    target = scene.data.xpos[scene.body_b] + [dx, dy, 0.0]
    address = scene.model.jnt_qposadr[scene.model.body_jntadr[scene.body_a]]
    scene.data.qpos[address : address + 3] = target
    mujoco.mj_kinematics(scene.model, scene.data)
    return scene


@pytest.mark.parametrize(
    ("dx", "dy", "left"),
    [
        (-0.13, 0.0, True),
        (-0.13, 0.049, True),
        (-0.13, -0.051, False),
        (-0.079, 0.0, False),
        (-0.081, 0.0, True),
        (-0.199, 0.0, True),
        (-0.201, 0.0, False),
        (0.13, 0.0, False),
    ],
)
def test_success_rule(dx: float, dy: float, left: bool) -> None:
    scene = scene_with_a_at(dx, dy)
    assert is_success("place_a2b_left", scene, OPEN) is left
    mirrored = scene_with_a_at(-dx, dy)
    assert is_success("place_a2b_right", mirrored, OPEN) is left


def test_success_needs_both_grippers_open() -> None:
    scene = scene_with_a_at(-0.13, 0.0)
    assert is_success("place_a2b_left", scene, {"left": 0.81, "right": 1.0})
    assert not is_success("place_a2b_left", scene, {"left": 0.8, "right": 1.0})
    assert is_success("babble", scene, {"left": 0.0, "right": 0.0})
    assert not is_success("carry", scene, {"left": 0.0, "right": 0.0})  # A stands on the table
    assert TASKS == ("place_a2b_left", "place_a2b_right", "babble", "carry")
