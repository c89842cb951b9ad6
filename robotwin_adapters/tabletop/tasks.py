"""The tasks: initial positions of objects, the working arm, and the success condition."""

import math
from collections.abc import Mapping

import numpy as np

from robotwin_adapters.tabletop.embodiments import Embodiment
from robotwin_adapters.tabletop.objects import OBJECTS, ObjectSpec
from robotwin_adapters.tabletop.scene import TABLE_TOP, Placement, Scene, SceneSpec

TASKS = ("place_a2b_left", "place_a2b_right", "babble", "carry")

GOAL_OFFSET = 0.13  # m from B along x
LIFTED = 0.06  # m above the table: the middle of an object that is in the hand
MAX_TRIES = 101
_A_PADDING, _B_PADDING = 0.05, 0.10  # m kept free of clutter
_CLUTTER_GAP = 0.01  # m between neighboring clutter objects


def sample_setup(task: str, embodiment: Embodiment, rng: np.random.Generator, clutter: int = 0) -> SceneSpec:
    """Draw two different objects and their positions by RoboTwin's ranges and acceptance rule."""
    check_task(task)
    leftwards = task == "place_a2b_left" or (task in ("babble", "carry") and rng.random() < 0.5)
    first, second = rng.permutation(len(OBJECTS))[:2]
    place_a, place_b = _sample_pair(leftwards, rng)
    setup = SceneSpec(embodiment, OBJECTS[first], OBJECTS[second], place_a, place_b)
    others = [thing for index, thing in enumerate(OBJECTS) if index not in (first, second)]
    return _with_clutter(setup, leftwards, others, clutter, rng) if clutter else setup


def check_task(task: str) -> None:
    """Refuse an unknown task name."""
    if task not in TASKS:
        raise ValueError(f"task is one of {', '.join(TASKS)}; got {task!r}")


def arm_side(setup: SceneSpec) -> str:
    """The arm that picks up A; the other one never moves."""
    return "right" if setup.place_a.x > 0 else "left"


def goal_shift(task: str) -> float:
    """Signed x distance from B to the goal of A (m)."""
    return -GOAL_OFFSET if task == "place_a2b_left" else GOAL_OFFSET


def is_success(task: str, scene: Scene, grippers: Mapping[str, float]) -> bool:
    """RoboTwin's rule: A next to B on the correct side, aligned with it, and both grippers commanded open.

    Babble always succeeds. Carrying succeeds while A is lifted.
    """
    if task == "babble":
        return True
    if task == "carry":
        return bool(scene.data.xpos[scene.body_a][2] > TABLE_TOP + LIFTED)
    dx, dy = (scene.data.xpos[scene.body_a] - scene.data.xpos[scene.body_b])[:2]
    on_side = dx < 0 if task == "place_a2b_left" else dx > 0
    near = 0.08 < math.hypot(dx, dy) < 0.20
    released = all(opening > 0.8 for opening in grippers.values())
    return bool(on_side and near and abs(dy) < 0.05 and released)


def _sample_pair(leftwards: bool, rng: np.random.Generator) -> tuple[Placement, Placement]:
    for _ in range(MAX_TRIES):
        place_a = Placement(rng.uniform(-0.22, 0.22), rng.uniform(-0.20, 0.00), _yaw(rng))
        place_b = _sample_b(place_a, leftwards, rng)
        if place_b is None:
            continue
        wrong_side = (place_a.x > place_b.x) == leftwards
        if _distance(place_a, place_b) > 0.19 or wrong_side:
            return place_a, place_b
    raise RuntimeError(f"no acceptable pair of places in {MAX_TRIES} tries")


def _sample_b(place_a: Placement, leftwards: bool, rng: np.random.Generator) -> Placement | None:
    """Draw B's position on the side of the table where the working arm can reach the goal."""
    near_center = (place_a.x > 0) != leftwards
    outer = (0.18, 0.23) if leftwards else (-0.23, -0.18)
    x_range = (-0.10, 0.10) if near_center else outer
    # If A is in the middle of the y range, no position is 0.1 away from it; the caller then draws A again.
    for _ in range(MAX_TRIES):
        place_b = Placement(rng.uniform(*x_range), rng.uniform(-0.20, 0.00), _yaw(rng))
        if _distance(place_a, place_b) >= 0.1 and abs(place_a.y - place_b.y) >= 0.1:
            return place_b
    return None


def _with_clutter(
    setup: SceneSpec, leftwards: bool, things: list[ObjectSpec], count: int, rng: np.random.Generator
) -> SceneSpec:
    goal_x = setup.place_b.x + (-GOAL_OFFSET if leftwards else GOAL_OFFSET)
    taken = [
        (setup.place_a.x, setup.place_a.y, setup.object_a.radius + _A_PADDING),
        (setup.place_b.x, setup.place_b.y, setup.object_b.radius + _B_PADDING),
        (goal_x, setup.place_b.y, setup.object_a.radius + _A_PADDING),
    ]
    clutter: list[tuple[ObjectSpec, Placement]] = []
    for _ in range(MAX_TRIES * count):
        if len(clutter) == count:
            break
        thing = things[rng.integers(len(things))]
        place = Placement(rng.uniform(-0.5, 0.5), rng.uniform(-0.28, 0.28), _yaw(rng))
        if all(math.hypot(place.x - x, place.y - y) > reach + thing.radius for x, y, reach in taken):
            taken.append((place.x, place.y, thing.radius + _CLUTTER_GAP))
            clutter.append((thing, place))
    return SceneSpec(
        setup.embodiment, setup.object_a, setup.object_b, setup.place_a, setup.place_b, tuple(clutter)
    )


def _yaw(rng: np.random.Generator) -> float:
    return float(rng.uniform(-3.14, 3.14))


def _distance(one: Placement, other: Placement) -> float:
    return math.hypot(one.x - other.x, one.y - other.y)
