"""Smooth random motion of both arms, so that actions and outcomes are not tied to a task.

Each arm moves between random hand poses over its half of the table; in a share of the episodes one arm first
goes down next to an object and pushes it. No planned motion goes through the table.
"""

import mujoco
import numpy as np
from jaxtyping import Float

from robotwin_adapters.tabletop.arms import SIDES
from robotwin_adapters.tabletop.control import ArmController
from robotwin_adapters.tabletop.embodiments import FINGER_THICKNESS, FINGER_TIP
from robotwin_adapters.tabletop.kinematics import ArmKinematics, JointPath, ToolPose, top_down
from robotwin_adapters.tabletop.scene import TABLE_TOP, Scene

STEPS = (900, 1500)  # physics steps of an episode, so 62 to 102 frames
PUSH_SHARE = 0.5  # of the episodes
_OUTWARDS = (0.08, 0.34)  # m from the middle of the table towards the arm's own side
_FORWARDS = (-0.24, 0.08)  # m, world y
_HEIGHT = (0.06, 0.30)  # m above the table, of the fingertip center
_MAX_TILT = 0.5  # rad away from straight down
_MAX_ROLL = 1.2  # rad of the wrist
_SLOWEST = 2.5  # slowest move, in multiples of the duration at full speed
_TABLE_GAP = 0.008  # m kept between fingers and table
_HAND_GAP = 0.18  # m kept between the two fingertip centers
_PUSH_HEIGHT = 0.030  # m above the table
_RUN_UP, _FOLLOW_THROUGH = 0.12, (0.02, 0.10)  # m before and past the object's middle
_CHECK_EVERY = 25  # physics steps between the instants where a plan is checked
_TRIES = 20

Plan = tuple[
    JointPath, Float[np.ndarray, "checks 3"]
]  # joint targets per step; fingertips at the checked steps


def babble(scene: Scene, controller: ArmController, rng: np.random.Generator, hold: str = "") -> bool:
    """Move both arms and both grippers at random for one recorded primitive; never fails.

    `hold` names an arm that does not move, gripper included. The other one is commanded as usual.
    """
    steps = int(rng.integers(*STEPS))
    pushed = (scene.body_a, scene.body_b)[rng.integers(2)] if rng.random() < PUSH_SHARE else None
    first, second = ("left", "right") if scene.data.xpos[pushed or scene.body_a][0] < 0 else ("right", "left")
    paths = dict(zip((first, second), _plan_pair(scene, first, second, steps, pushed, rng), strict=True))
    openings = {side: _random_openings(steps, rng) for side in SIDES}
    moving = [side for side in SIDES if side != hold]

    def command(step: int) -> None:
        for side in moving:
            controller.arm_targets[side] = paths[side][step]
            controller.gripper_targets[side] = float(openings[side][step])

    controller.primitive(steps, command)
    return True


def _plan_pair(
    scene: Scene, first: str, second: str, steps: int, pushed: int | None, rng: np.random.Generator
) -> tuple[JointPath, JointPath]:
    """Plan the first arm freely, maybe with a push.

    Of many plans for the second, pick one that keeps clear of it.
    """
    lead, lead_tips = _plan(scene, ArmKinematics(scene, scene.arm(first)), steps, pushed, rng)
    other = ArmKinematics(scene, scene.arm(second))
    widest, best = -1.0, lead
    for _ in range(_TRIES):
        path, tips = _plan(scene, other, steps, None, rng)
        gap = float(np.linalg.norm(tips - lead_tips, axis=1).min())
        if gap > widest:
            widest, best = gap, path
        if gap > _HAND_GAP:
            break
    return lead, best


def _plan(scene: Scene, arm: ArmKinematics, steps: int, pushed: int | None, rng: np.random.Generator) -> Plan:
    pieces = [] if pushed is None else _push(scene, arm, pushed, rng)
    while sum(map(len, pieces)) < steps:
        start = pieces[-1][-1] if pieces else arm.home
        pieces.append(_random_move(arm, start, rng))
    path = np.concatenate(pieces)[:steps]
    return path, np.stack([arm.tool_pose(joints).position for joints in path[::_CHECK_EVERY]])


def _push(scene: Scene, arm: ArmKinematics, body: int, rng: np.random.Generator) -> list[JointPath]:
    """Go down next to the object, push it along a line, and rise again; empty if that is out of reach."""
    center = np.array([*scene.data.xpos[body][:2], TABLE_TOP + _PUSH_HEIGHT])
    for _ in range(_TRIES):
        angle = rng.uniform(-np.pi, np.pi)
        along = np.array([np.cos(angle), np.sin(angle), 0.0])
        # The fingers close along the push: one of them leads, and the object cannot slip between them.
        low = top_down(center - _RUN_UP * along, arm.nearest_yaw(center, angle))
        far = low.shifted((_RUN_UP + rng.uniform(*_FOLLOW_THROUGH)) * along)
        start = arm.solve(low.backed_off(0.12), arm.aimed_home(low.position))
        if start is None:
            continue
        pieces = [arm.direct_path(arm.home, start)]
        for target in (low, far, far.backed_off(0.12)):
            path = arm.straight_path(pieces[-1][-1], target)
            if path is None:
                break
            pieces.append(path)
        if len(pieces) == 4 and all(_above_table(arm, piece) for piece in pieces):
            return pieces
    return []


def _random_move(arm: ArmKinematics, start: Float[np.ndarray, " n"], rng: np.random.Generator) -> JointPath:
    for _ in range(_TRIES):
        target = _random_pose(arm, rng)
        goal = arm.solve(target, arm.aimed_home(target.position))
        if goal is None:
            continue
        path = arm.direct_path(start, goal, pace=rng.uniform(1.0, _SLOWEST))
        if _above_table(arm, path):
            return path
    return arm.direct_path(start, arm.home)


def _random_pose(arm: ArmKinematics, rng: np.random.Generator) -> ToolPose:
    outwards = -1.0 if arm.arm.side == "left" else 1.0
    position = np.array(
        [outwards * rng.uniform(*_OUTWARDS), rng.uniform(*_FORWARDS), TABLE_TOP + rng.uniform(*_HEIGHT)]
    )
    upright = top_down(position, arm.easy_yaw(position) + rng.uniform(-_MAX_ROLL, _MAX_ROLL))
    direction, tilt = rng.uniform(-np.pi, np.pi), rng.uniform(0.0, _MAX_TILT)
    quaternion, turn = np.zeros(4), np.zeros(9)
    mujoco.mju_axisAngle2Quat(quaternion, np.array([np.cos(direction), np.sin(direction), 0.0]), tilt)
    mujoco.mju_quat2Mat(turn, quaternion)
    return ToolPose(position, turn.reshape(3, 3) @ upright.rotation)


def _above_table(arm: ArmKinematics, path: JointPath) -> bool:
    """Whether the lowest corner of the open fingers stays above the table along the whole path."""
    # Half extents of the open hand about the fingertip center: beyond it, along the closing line, across it.
    extents = np.array([FINGER_TIP, arm.robot.gripper_opening / 2 + FINGER_THICKNESS, FINGER_THICKNESS])
    for joints in (*path[::_CHECK_EVERY], path[-1]):
        pose = arm.tool_pose(joints)
        if pose.position[2] - np.abs(pose.rotation[2]) @ extents < TABLE_TOP + _TABLE_GAP:
            return False
    return True


def _random_openings(steps: int, rng: np.random.Generator) -> Float[np.ndarray, " steps"]:
    """A gripper command that starts open, then holds and ramps to random openings, often to an extreme."""
    times, values = [0], [1.0]
    while times[-1] < steps:
        hold, ramp = int(rng.integers(30, 250)), int(rng.integers(100, 250))
        times += [times[-1] + hold, times[-1] + hold + ramp]
        values += [values[-1], float(np.clip(rng.uniform(-0.5, 1.5), 0.0, 1.0))]
    return np.interp(np.arange(steps), times, values)
