"""The tabletop as a MuJoCo model built in code: table, wall, two arms with parallel grippers, objects.

World frame: x to the robot's right, y forwards (away from the robot), z up; metres.
Link and hand frames: x along the link, so the hand's x is its approach direction and its y the closing direction.
"""

import math
from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Float, Int

from robotwin_adapters.tabletop.embodiments import TCP_OFFSET, Embodiment
from robotwin_adapters.tabletop.objects import OBJECT_MASS, ObjectSpec, Part

SIDES = ("left", "right")
TABLE_TOP = 0.74  # m
TIMESTEP = 0.004  # s

# Who may touch whom: an arm never collides with itself, everything else does.
_LEFT, _RIGHT, _THINGS = 1, 2, 4
_LINK_MASS = 1.0  # kg, every link alike, as in RoboTwin
_JOINT_GAINS = (3000.0, 150.0)  # N m / rad, N m s / rad: the arm follows its target 0.05 s late
_JOINT_TORQUE = 150.0  # N m
_FINGER_GAINS = (500.0, 20.0)  # N / m, N s / m
_FINGER_FORCE = 20.0  # N
_FINGER_MASS = 0.1  # kg
FINGER_THICKNESS, FINGER_WIDTH = 0.020, 0.034  # m, along and across the closing direction
_FINGER_SPAN = (
    0.060,
    0.136,
)  # m along the approach from the wrist frame; the pad ends just past the fingertip centre
_PAD_FRICTION = (1.5, 0.02, 0.0005)  # sliding, torsional, rolling: rubber pads
_THING_FRICTION = (0.5, 0.005, 0.0001)
_JOINT_LIMITS = {"z": (-2.6, 2.6), "y": (-2.7, 2.7), "x": (-3.0, 3.0)}  # rad
_AXIS = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}
_GEOM = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
}


@dataclass(frozen=True)
class Placement:
    """Where an object stands on the table."""

    x: float  # m, world
    y: float  # m, world
    yaw: float  # rad, about the vertical


@dataclass(frozen=True)
class SceneSpec:
    """Everything that decides a scene before time starts."""

    embodiment: Embodiment
    object_a: ObjectSpec
    object_b: ObjectSpec
    place_a: Placement
    place_b: Placement
    clutter: tuple[tuple[ObjectSpec, Placement], ...] = ()


@dataclass(frozen=True)
class Arm:
    """Where one arm lives in the arrays of the model."""

    side: str  # "left" or "right"
    joints: Int[np.ndarray, " n"]  # positions in qpos
    dofs: Int[np.ndarray, " n"]  # positions in qvel and jacobian columns
    actuators: Int[np.ndarray, " n"]  # positions in ctrl
    fingers: Int[np.ndarray, " 2"]  # positions in qpos, m from closed
    finger_actuators: Int[np.ndarray, " 2"]
    wrist_site: int  # the recorded end pose: last joint, x = approach
    tcp_site: int  # fingertip centre
    camera_site: int  # x = viewing direction, z = up in the image
    limits: Float[np.ndarray, "n 2"]  # rad


@dataclass(frozen=True)
class Scene:
    """A compiled scene with its state and the places to find things in it."""

    spec: SceneSpec
    model: mujoco.MjModel
    data: mujoco.MjData
    left: Arm
    right: Arm
    body_a: int
    body_b: int
    clutter_bodies: tuple[int, ...]

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
        _add_arm(world, spec.embodiment, side)
    _add_object(world, "object_a", spec.object_a, spec.place_a)
    _add_object(world, "object_b", spec.object_b, spec.place_b)
    for index, (thing, place) in enumerate(spec.clutter):
        _add_object(world, f"clutter_{index}", thing, place)
    model = world.compile()
    data = mujoco.MjData(model)
    left, right = (_find_arm(model, side) for side in SIDES)
    scene = Scene(
        spec,
        model,
        data,
        left,
        right,
        body_a=model.body("object_a").id,
        body_b=model.body("object_b").id,
        clutter_bodies=tuple(model.body(f"clutter_{index}").id for index in range(len(spec.clutter))),
    )
    for arm in (left, right):
        data.qpos[arm.joints] = data.ctrl[arm.actuators] = spec.embodiment.home
        data.qpos[arm.fingers] = data.ctrl[arm.finger_actuators] = spec.embodiment.gripper_opening / 2
    mujoco.mj_forward(model, data)
    return scene


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
    geom.contype = geom.conaffinity = _THINGS
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
        type=_GEOM[part.shape], size=_padded(part.size), pos=part.centre, rgba=part.rgba, density=density
    )
    geom.contype = geom.conaffinity = _THINGS
    geom.friction = _THING_FRICTION
    # Torsional friction stops a ball or a can from spinning about its contact for ever.
    geom.condim = 4


def _add_arm(world: mujoco.MjSpec, robot: Embodiment, side: str) -> None:
    x = robot.base_x(side)
    _add_pedestal(world, robot, x)
    body = world.worldbody.add_body(
        pos=(x, robot.base_y, robot.shoulder_height), quat=(math.sqrt(0.5), 0, 0, math.sqrt(0.5))
    )
    lengths = (*robot.link_offsets[1:], 0.0)
    for number, (axis, offset, length) in enumerate(
        zip(robot.axes, robot.link_offsets, lengths, strict=True), 1
    ):
        body = body.add_body(name=f"{side}_link{number}", pos=(offset, 0, 0), gravcomp=1)
        body.add_joint(
            name=f"{side}_joint{number}",
            axis=_AXIS[axis],
            range=_JOINT_LIMITS[axis],
            limited=True,
            armature=0.1,
        )
        _add_link(body, robot, side, number, length)
        _add_servo(world, f"{side}_joint{number}", _JOINT_GAINS, _JOINT_TORQUE)
    _add_hand(world, body, robot, side)


def _add_pedestal(world: mujoco.MjSpec, robot: Embodiment, x: float) -> None:
    half = (robot.shoulder_height - 1.2 * robot.link_radius) / 2
    world.worldbody.add_geom(
        type=_GEOM["cylinder"],
        pos=(x, robot.base_y, half),
        size=(1.5 * robot.link_radius, half, 0),
        rgba=robot.upper_rgba,
        contype=0,
        conaffinity=_THINGS,
    )


def _add_link(body: mujoco.MjsBody, robot: Embodiment, side: str, number: int, length: float) -> None:
    past_elbow = number >= robot.joints_per_arm - 3
    joint_ball = robot.axes[number - 1] == "y"
    if joint_ball or not length:
        ball = body.add_geom(
            type=_GEOM["sphere"], size=(1.25 * robot.link_radius, 0, 0), rgba=robot.joint_rgba
        )
        _arm_contact(ball, side, 0.0 if length else _LINK_MASS)
    if length:
        rgba = robot.forearm_rgba if past_elbow else robot.upper_rgba
        tube = body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=(0, 0, 0, length, 0, 0),
            size=(robot.link_radius * (0.85 if past_elbow else 1.0), 0, 0),
            rgba=rgba,
        )
        _arm_contact(tube, side, _LINK_MASS)


def _add_hand(world: mujoco.MjSpec, wrist: mujoco.MjsBody, robot: Embodiment, side: str) -> None:
    half_opening = robot.gripper_opening / 2
    palm = wrist.add_geom(
        type=_GEOM["box"],
        pos=(0.045, 0, 0),
        size=(0.017, half_opening + FINGER_THICKNESS, 0.022),
        rgba=robot.hand_rgba,
    )
    _arm_contact(palm, side, 0.0)
    wrist.add_site(name=f"{side}_wrist")
    wrist.add_site(name=f"{side}_tcp", pos=(TCP_OFFSET, 0, 0))
    # Beside the hand, tilted so that the fingertips are in the middle of the picture.
    wrist.add_site(name=f"{side}_camera", pos=(-0.02, 0, 0.09), quat=_pitched(0.45))
    near, far = _FINGER_SPAN
    for number, sign in ((1, 1.0), (2, -1.0)):
        finger = wrist.add_body(name=f"{side}_finger{number}", gravcomp=1)
        finger.add_joint(
            name=f"{side}_finger{number}",
            type=mujoco.mjtJoint.mjJNT_SLIDE,
            axis=(0, sign, 0),
            range=(0, half_opening),
            limited=True,
        )
        pad = finger.add_geom(
            type=_GEOM["box"],
            pos=((near + far) / 2, sign * FINGER_THICKNESS / 2, 0),
            size=((far - near) / 2, FINGER_THICKNESS / 2, FINGER_WIDTH / 2),
            rgba=robot.finger_rgba,
        )
        _arm_contact(pad, side, _FINGER_MASS)
        pad.friction, pad.condim, pad.priority = _PAD_FRICTION, 4, 1
        _add_servo(world, f"{side}_finger{number}", _FINGER_GAINS, _FINGER_FORCE)


def _arm_contact(geom: mujoco.MjsGeom, side: str, mass: float) -> None:
    own, other = (_LEFT, _RIGHT) if side == "left" else (_RIGHT, _LEFT)
    geom.contype, geom.conaffinity, geom.mass = own, other | _THINGS, mass


def _add_servo(world: mujoco.MjSpec, joint: str, gains: tuple[float, float], limit: float) -> None:
    servo = world.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    servo.set_to_position(kp=gains[0], kv=gains[1])
    servo.forcelimited, servo.forcerange = True, (-limit, limit)


def _find_arm(model: mujoco.MjModel, side: str) -> Arm:
    names = [f"{side}_joint{number}" for number in range(1, model.nu // 2 - 1)]
    fingers = [f"{side}_finger{number}" for number in (1, 2)]
    joint_ids = [model.joint(name).id for name in names]
    return Arm(
        side,
        joints=model.jnt_qposadr[joint_ids],
        dofs=model.jnt_dofadr[joint_ids],
        actuators=np.array([model.actuator(name).id for name in names]),
        fingers=model.jnt_qposadr[[model.joint(name).id for name in fingers]],
        finger_actuators=np.array([model.actuator(name).id for name in fingers]),
        wrist_site=model.site(f"{side}_wrist").id,
        tcp_site=model.site(f"{side}_tcp").id,
        camera_site=model.site(f"{side}_camera").id,
        limits=model.jnt_range[joint_ids],
    )


def _pitched(angle: float) -> tuple[float, float, float, float]:
    return (math.cos(angle / 2), 0.0, math.sin(angle / 2), 0.0)


def _padded(size: tuple[float, ...]) -> tuple[float, float, float]:
    x, y, z = (*size, 0.0, 0.0)[:3]
    return (x, y, z)
