"""One arm with its parallel gripper: how it is added to a model, and its indices afterwards.

Link and hand frames: x along the link, so a hand's x is its approach direction; its fingers close along y.
"""

import math
from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Float, Int

from robotwin_adapters.tabletop.embodiments import (
    FINGER_THICKNESS,
    FINGER_TIP,
    FINGER_WIDTH,
    TCP_OFFSET,
    Embodiment,
)

SIDES = ("left", "right")
TIMESTEP = 0.004  # s

# Collision bits: an arm never collides with itself, everything else can.
_LEFT, _RIGHT, THINGS = 1, 2, 4

_BOX, _SPHERE = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_SPHERE
_CYLINDER, _CAPSULE = mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_CAPSULE

_LINK_MASS = 1.0  # kg, every link alike, as in RoboTwin
_ARMATURE = 0.1  # kg m2, of the motor at each joint
_JOINT_GAINS = (3000.0, 150.0)  # N m / rad, N m s / rad: the arm trails its target by 0.05 s
_JOINT_TORQUE = 150.0  # N m
_FINGER_GAINS = (250.0, 15.0)  # N / m, N s / m
_FINGER_FORCE = 20.0  # N
_FINGER_MASS = 0.1  # kg
_NECK = 0.030  # m, between wrist and palm
_FINGER_ROOT = 0.060  # m along the approach from the wrist frame, where the fingers begin
_PAD_FRICTION = (1.5, 0.02, 0.0005)  # sliding, torsional, rolling: rubber pads
# As stiff as the time step allows: with the default a light object sinks 6 mm into the pads.
_PAD_SOLREF, _PAD_SOLIMP = (2 * TIMESTEP, 1.0), (0.95, 0.99, 0.001, 0.5, 2.0)
_JOINT_LIMITS = {"z": (-2.6, 2.6), "y": (-2.7, 2.7), "x": (-3.0, 3.0)}  # rad
_AXIS = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}
# Mounted on the hand, on the side away from the forearm, pointing past the fingertips.
_CAMERA_POSITION, _CAMERA_PITCH = (-0.05, 0.0, 0.11), 0.36  # m, rad


@dataclass(frozen=True)
class Arm:
    """Indices of one arm in the arrays of the model."""

    side: str  # "left" or "right"
    joints: Int[np.ndarray, " n"]  # positions in qpos
    dofs: Int[np.ndarray, " n"]  # positions in qvel and jacobian columns
    actuators: Int[np.ndarray, " n"]  # positions in ctrl
    fingers: Int[np.ndarray, " 2"]  # positions in qpos, m from closed
    finger_actuators: Int[np.ndarray, " 2"]
    wrist_site: int  # the recorded end pose: last joint, x = approach
    tcp_site: int  # fingertip center
    limits: Float[np.ndarray, "n 2"]  # rad


def add_arm(world: mujoco.MjSpec, robot: Embodiment, side: str) -> None:
    """Add a pedestal, an arm with its servos, a gripper and the arm's sites to the model."""
    x = robot.base_x(side)
    _add_pedestal(world, robot, x)
    # Rotated by 90 degrees: the x axis of a straight arm is the y axis of the world.
    body = world.worldbody.add_body(
        pos=(x, robot.base_y, robot.shoulder_height), quat=(math.sqrt(0.5), 0, 0, math.sqrt(0.5))
    )
    lengths = (*robot.link_offsets[1:], _NECK)
    links = zip(robot.axes, robot.link_offsets, lengths, strict=True)
    for number, (axis, offset, length) in enumerate(links, 1):
        name = f"{side}_joint{number}"
        body = body.add_body(name=f"{side}_link{number}", pos=(offset, 0, 0), gravcomp=1)
        joint = body.add_joint(name=name, axis=_AXIS[axis], range=_JOINT_LIMITS[axis], limited=True)
        joint.armature = _ARMATURE
        _add_link(body, robot, side, number, length)
        _add_servo(world, name, _JOINT_GAINS, _JOINT_TORQUE)
    _add_hand(world, body, robot, side)


def find_arm(model: mujoco.MjModel, robot: Embodiment, side: str) -> Arm:
    """Find the indices of an arm that `add_arm` added."""
    names = [f"{side}_joint{number}" for number in range(1, robot.joints_per_arm + 1)]
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
        limits=model.jnt_range[joint_ids],
    )


def _add_pedestal(world: mujoco.MjSpec, robot: Embodiment, x: float) -> None:
    half = robot.shoulder_height / 2 - robot.link_radius
    world.worldbody.add_geom(
        type=_CYLINDER,
        pos=(x, robot.base_y, half),
        size=(1.5 * robot.link_radius, half, 0),
        rgba=robot.upper_rgba,
        contype=0,
        conaffinity=THINGS,
    )


def _add_link(body: mujoco.MjsBody, robot: Embodiment, side: str, number: int, length: float) -> None:
    """Add a link's geoms: a turret at the base, a ball at each bend, a tube along each stretch."""
    radius = robot.link_radius
    if number == 1:
        turret = body.add_geom(
            type=_CYLINDER, pos=(0, 0, -radius), size=(1.3 * radius, radius, 0), rgba=robot.joint_rgba
        )
        _set_contact(turret, side, _LINK_MASS)
    if robot.axes[number - 1] == "y":
        ball = body.add_geom(type=_SPHERE, size=(1.25 * radius, 0, 0), rgba=robot.joint_rgba)
        _set_contact(ball, side, 0.0 if length else _LINK_MASS)
    if length:
        elbow, neck = robot.joints_per_arm - 3, robot.joints_per_arm
        tube = body.add_geom(type=_CAPSULE, fromto=(0, 0, 0, length, 0, 0))
        tube.size = ((0.85 if number >= elbow else 1.0) * radius, 0, 0)
        tube.rgba = robot.upper_rgba if number < elbow else robot.forearm_rgba
        if number == neck:
            tube.rgba = robot.hand_rgba
        _set_contact(tube, side, _LINK_MASS)


def _add_hand(world: mujoco.MjSpec, wrist: mujoco.MjsBody, robot: Embodiment, side: str) -> None:
    palm = wrist.add_geom(type=_BOX, pos=(0.045, 0, 0), rgba=robot.hand_rgba)
    palm.size = (0.017, robot.gripper_opening / 2 + FINGER_THICKNESS, 0.022)
    _set_contact(palm, side, 0.0)
    wrist.add_site(name=f"{side}_wrist")
    wrist.add_site(name=f"{side}_tcp", pos=(TCP_OFFSET, 0, 0))
    half_pitch = _CAMERA_PITCH / 2
    wrist.add_site(
        name=f"{side}_camera", pos=_CAMERA_POSITION, quat=(math.cos(half_pitch), 0, math.sin(half_pitch), 0)
    )
    _add_finger(world, wrist, robot, side, 1)
    _add_finger(world, wrist, robot, side, 2)


def _add_finger(
    world: mujoco.MjSpec, wrist: mujoco.MjsBody, robot: Embodiment, side: str, number: int
) -> None:
    outwards = 1.0 if number == 1 else -1.0
    name = f"{side}_finger{number}"
    finger = wrist.add_body(name=name, gravcomp=1)
    finger.add_joint(
        name=name,
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=(0, outwards, 0),
        range=(0, robot.gripper_opening / 2),
        limited=True,
    )
    tip = TCP_OFFSET + FINGER_TIP
    pad = finger.add_geom(
        type=_BOX,
        pos=((_FINGER_ROOT + tip) / 2, outwards * FINGER_THICKNESS / 2, 0),
        size=((tip - _FINGER_ROOT) / 2, FINGER_THICKNESS / 2, FINGER_WIDTH / 2),
        rgba=robot.finger_rgba,
    )
    _set_contact(pad, side, _FINGER_MASS)
    pad.friction, pad.condim, pad.priority = _PAD_FRICTION, 4, 1
    pad.solref, pad.solimp = _PAD_SOLREF, _PAD_SOLIMP
    _add_servo(world, name, _FINGER_GAINS, _FINGER_FORCE)


def _set_contact(geom: mujoco.MjsGeom, side: str, mass: float) -> None:
    own, other = (_LEFT, _RIGHT) if side == "left" else (_RIGHT, _LEFT)
    geom.contype, geom.conaffinity, geom.mass = own, other | THINGS, mass


def _add_servo(world: mujoco.MjSpec, joint: str, gains: tuple[float, float], limit: float) -> None:
    servo = world.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    servo.set_to_position(kp=gains[0], kv=gains[1])
    servo.forcelimited, servo.forcerange = True, (-limit, limit)
