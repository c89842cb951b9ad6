import math

import pytest

from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.objects import OBJECTS, ObjectSpec, Part


def width_along(thing: ObjectSpec, yaw: float) -> float:
    """Extent of the parts at grasp height along a direction (m)."""
    halves = []
    for part in thing.parts:
        if part.shape == "box":
            half = part.size[0] * abs(math.cos(yaw)) + part.size[1] * abs(math.sin(yaw))
        else:
            half = part.size[0]
        halves.append(half + abs(part.center[0] * math.cos(yaw) + part.center[1] * math.sin(yaw)))
    return 2 * max(halves)


def test_there_are_enough_kinds() -> None:
    assert len(OBJECTS) >= 6
    assert len({thing.name for thing in OBJECTS}) == len({thing.phrase for thing in OBJECTS}) == len(OBJECTS)
    assert {part.shape for thing in OBJECTS for part in thing.parts} == {"box", "cylinder", "sphere"}
    assert sum(len(thing.parts) > 1 for thing in OBJECTS) >= 3


def test_every_gripper_closes_on_every_object() -> None:
    narrowest = min(robot.gripper_opening for robot in EMBODIMENTS.values())
    for thing in OBJECTS:
        for yaw in thing.grasp_yaws:
            assert 0.03 <= width_along(thing, yaw) <= min(0.08, narrowest - 0.015), thing.name


def test_objects_stand_on_their_underside_and_pass_under_a_carried_one() -> None:
    for thing in OBJECTS:
        halves = {"box": 2, "cylinder": 1, "sphere": 0}
        spans = [
            (p.center[2] - p.size[halves[p.shape]], p.center[2] + p.size[halves[p.shape]])
            for p in thing.parts
        ]
        assert min(low for low, _ in spans) == pytest.approx(0.0), thing.name
        # Carried objects hang 0.10 m up.
        assert max(high for _, high in spans) <= 0.09, thing.name


def test_volume_and_reach() -> None:
    box = Part("box", (0.1, 0.2, 0.3), (0, 0, 0.3), (1, 1, 1, 1))
    assert box.volume == pytest.approx(0.2 * 0.4 * 0.6)
    assert box.reach == pytest.approx(math.hypot(0.1, 0.2))
    ball = Part("sphere", (0.1,), (0.3, 0.4, 0.1), (1, 1, 1, 1))
    assert ball.volume == pytest.approx(4 / 3 * math.pi * 1e-3)
    assert ball.reach == pytest.approx(0.6)
