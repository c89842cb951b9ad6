"""The tabletop as a MuJoCo model built in code: table, wall, two arms with parallel grippers, objects.

World frame: x to the robot's right, y forwards (away from the robot), z up; metres.
"""

import math
from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Float

from robotwin_adapters.tabletop.arms import SIDES, THINGS, TIMESTEP, Arm, add_arm, find_arm
from robotwin_adapters.tabletop.embodiments import Embodiment
from robotwin_adapters.tabletop.objects import OBJECT_MASS, ObjectSpec, Part

TABLE_TOP = 0.74  # m

_THING_FRICTION = (0.5, 0.005, 0.0001)
_GEOM = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
}


@dataclass(frozen=True)
class Placement:
    """Position of an object on the table."""

    x: float  # m, world
    y: float  # m, world
    yaw: float  # rad, about the vertical


@dataclass(frozen=True)
class SceneSpec:
    """Everything that determines a scene's initial state."""

    embodiment: Embodiment
    object_a: ObjectSpec
    object_b: ObjectSpec
    place_a: Placement
    place_b: Placement
    clutter: tuple[tuple[ObjectSpec, Placement], ...] = ()


@dataclass(frozen=True)
class Scene:
    """A compiled scene with its state and the indices of its parts."""

    spec: SceneSpec
    model: mujoco.MjModel
    data: mujoco.MjData
    left: Arm
    right: Arm
    body_a: int
    body_b: int

    def arm(self, side: str) -> Arm:
        """The arm on that side."""
        return self.left if side == "left" else self.right

    def pose(self, body: int) -> Float[np.ndarray, " 7"]:
        """Position and quaternion (w x y z) of a body in the world."""
        return np.concatenate([self.data.xpos[body], self.data.xquat[body]])


def build_scene(spec: SceneSpec) -> Scene:
    """Compile the scene, with both arms at home, grippers open and objects just above the table."""
    world = _empty_world()
    for side in SIDES:
        add_arm(world, spec.embodiment, side)
    _add_object(world, "object_a", spec.object_a, spec.place_a)
    _add_object(world, "object_b", spec.object_b, spec.place_b)
    for index, (thing, place) in enumerate(spec.clutter):
        _add_object(world, f"clutter_{index}", thing, place)
    model = world.compile()
    data = mujoco.MjData(model)
    left, right = (find_arm(model, spec.embodiment, side) for side in SIDES)
    for arm in (left, right):
        data.qpos[arm.joints] = data.ctrl[arm.actuators] = spec.embodiment.home
        data.qpos[arm.fingers] = data.ctrl[arm.finger_actuators] = spec.embodiment.gripper_opening / 2
    mujoco.mj_forward(model, data)
    return Scene(spec, model, data, left, right, model.body("object_a").id, model.body("object_b").id)


def _empty_world() -> mujoco.MjSpec:
    world = mujoco.MjSpec()
    world.compiler.degree = False
    world.option.timestep = TIMESTEP
    world.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # Elliptic cones with stiff friction rows keep a held object from creeping out of the grip.
    world.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    world.option.impratio = 10.0
    floor_size, floor_rgba = (3.0, 3.0, 0.1), (0.60, 0.60, 0.62, 1.0)
    _add_static(world, "floor", mujoco.mjtGeom.mjGEOM_PLANE, (0, 0, 0), floor_size, floor_rgba)
    table_size = (0.6, 0.35, 0.025)
    _add_static(world, "table", _GEOM["box"], (0, 0, TABLE_TOP - 0.025), table_size, (0.95, 0.95, 0.95, 1.0))
    _add_static(world, "wall", _GEOM["box"], (0, 1.0, 1.5), (3.0, 0.6, 1.5), (1.0, 0.9, 0.9, 1.0))
    return world


def _add_static(
    world: mujoco.MjSpec,
    name: str,
    shape: mujoco.mjtGeom,
    position: tuple[float, float, float],
    size: tuple[float, ...],
    rgba: tuple[float, ...],
) -> None:
    geom = world.worldbody.add_geom(name=name, type=shape, pos=position, size=_padded(size), rgba=rgba)
    geom.contype = geom.conaffinity = THINGS
    geom.friction = _THING_FRICTION


def _add_object(world: mujoco.MjSpec, name: str, thing: ObjectSpec, place: Placement) -> None:
    half = place.yaw / 2
    body = world.worldbody.add_body(
        name=name, pos=(place.x, place.y, TABLE_TOP + 0.001), quat=(math.cos(half), 0, 0, math.sin(half))
    )
    body.add_freejoint(name=name)
    density = OBJECT_MASS / sum(part.volume for part in thing.parts)
    for part in thing.parts:
        _add_part(body, part, density)


def _add_part(body: mujoco.MjsBody, part: Part, density: float) -> None:
    geom = body.add_geom(
        type=_GEOM[part.shape], size=_padded(part.size), pos=part.center, rgba=part.rgba, density=density
    )
    geom.contype = geom.conaffinity = THINGS
    geom.friction = _THING_FRICTION
    # Without torsional friction a ball or a can would spin about its contact endlessly.
    geom.condim = 4


def _padded(size: tuple[float, ...]) -> tuple[float, float, float]:
    x, y, z = (*size, 0.0, 0.0)[:3]
    return (x, y, z)
