"""The scripted experts: seven primitives with one arm for the a2b tasks, and a long path with A in the hand.

1 move before the grasp, 0.10 m back 2 straight in 3 close 4 straight back 0.10 m 5 above the goal, 0.10 m
distance 6 lower to 0.02 m distance 7 open
"""

import math

import numpy as np
from jaxtyping import Float

from robotwin_adapters.tabletop.control import ArmController
from robotwin_adapters.tabletop.embodiments import FINGER_THICKNESS, FINGER_WIDTH
from robotwin_adapters.tabletop.kinematics import ArmKinematics, ToolPose, half_turn, top_down
from robotwin_adapters.tabletop.scene import TABLE_TOP, Scene
from robotwin_adapters.tabletop.tasks import arm_side, goal_shift

PRE_GRASP, RETREAT, ABOVE_GOAL, RELEASE = 0.10, 0.10, 0.10, 0.02  # m
_CLEAR = 0.005  # m between open fingers and B that counts as free
CARRY_FRAMES = 520  # recorded frames, enough for a clip of 241 at half their rate
# m from the middle of the table, world y, and above the table: mostly inside the view of the desk camera
_CARRY_OUTWARDS, _CARRY_FORWARDS, _CARRY_HEIGHT = (0.0, 0.18), (-0.22, 0.0), (0.14, 0.22)
_CARRY_TRIES = 400  # number of random targets; those out of reach are skipped


def place_a_beside_b(task: str, scene: Scene, controller: ArmController) -> bool:
    """Pick A up and put it next to B; returns False as soon as a pose cannot be reached."""
    side = arm_side(scene.spec)
    arm = ArmKinematics(scene, scene.arm(side))
    grasp = choose_grasp(task, scene, arm)
    if not _pick_up(controller, arm, grasp):
        return False
    release = _release_pose(task, scene, arm, grasp)
    if not _straight(controller, arm, release.backed_off(ABOVE_GOAL)):
        return False
    if not _straight(controller, arm, release.backed_off(RELEASE)):
        return False
    controller.grip(side, 1.0)
    return True


def carry_a(scene: Scene, controller: ArmController, rng: np.random.Generator) -> bool:
    """Pick A up and move it between random targets above the table, for at least CARRY_FRAMES frames."""
    arm = ArmKinematics(scene, scene.arm(arm_side(scene.spec)))
    grasp = choose_grasp("carry", scene, arm)
    if not _pick_up(controller, arm, grasp):
        return False
    outwards = -1.0 if arm.arm.side == "left" else 1.0
    for _ in range(_CARRY_TRIES):
        if controller.num_frames >= CARRY_FRAMES:
            return True
        place = np.array(
            [
                outwards * rng.uniform(*_CARRY_OUTWARDS),
                rng.uniform(*_CARRY_FORWARDS),
                TABLE_TOP + rng.uniform(*_CARRY_HEIGHT),
            ]
        )
        _straight(controller, arm, ToolPose(place, grasp.rotation))
    return False


def _pick_up(controller: ArmController, arm: ArmKinematics, grasp: ToolPose) -> bool:
    side = arm.arm.side
    ready = arm.solve(grasp.backed_off(PRE_GRASP), arm.aimed_home(grasp.position))
    if ready is None:
        return False
    controller.move(side, arm.direct_path(controller.arm_targets[side], ready))
    if not _straight(controller, arm, grasp):
        return False
    controller.grip(side, 0.0)
    return _straight(controller, arm, grasp.backed_off(RETREAT))


def choose_grasp(task: str, scene: Scene, arm: ArmKinematics) -> ToolPose:
    """A top-down grasp of A whose open fingers clear B, here and at the goal, with the least wrist roll."""
    thing = scene.spec.object_a
    position, b_position = scene.data.xpos[scene.body_a], scene.data.xpos[scene.body_b]
    goal = b_position + np.array([goal_shift(task), 0.0, 0.0])
    heading = _yaw_of(scene, scene.body_a)
    easy = arm.easy_yaw(position)

    def cost(yaw: float) -> tuple[float, float]:
        room = min(
            _finger_room(scene, yaw, b_position - position), _finger_room(scene, yaw, b_position - goal)
        )
        return (max(0.0, _CLEAR - room), abs(half_turn(yaw - easy)))

    yaw = min((heading + yaw for yaw in thing.grasp_yaws), key=cost)
    return top_down(position + np.array([0.0, 0.0, thing.grasp_height]), arm.nearest_yaw(position, yaw))


def _straight(controller: ArmController, arm: ArmKinematics, target: ToolPose) -> bool:
    path = arm.straight_path(controller.arm_targets[arm.arm.side], target)
    if path is None:
        return False
    controller.move(arm.arm.side, path)
    return True


def _release_pose(task: str, scene: Scene, arm: ArmKinematics, grasp: ToolPose) -> ToolPose:
    """The hand pose that puts A next to B, given the actual position of A in the hand."""
    tool = scene.data.site_xpos[arm.arm.tcp_site]
    offset = tool - scene.data.xpos[scene.body_a]
    goal = scene.data.xpos[scene.body_b] + np.array([goal_shift(task), 0.0, 0.0])
    return ToolPose(goal + offset, grasp.rotation)


def _finger_room(scene: Scene, yaw: float, to_b: Float[np.ndarray, " 3"]) -> float:
    """Gap between the open fingers of a hand closing along `yaw` and the circle round B (m)."""
    along = abs(to_b[0] * math.cos(yaw) + to_b[1] * math.sin(yaw))
    across = abs(-to_b[0] * math.sin(yaw) + to_b[1] * math.cos(yaw))
    inner = scene.spec.embodiment.gripper_opening / 2
    past = max(inner - along, 0.0, along - inner - FINGER_THICKNESS)
    return math.hypot(past, max(0.0, across - FINGER_WIDTH / 2)) - scene.spec.object_b.radius


def _yaw_of(scene: Scene, body: int) -> float:
    rotation = scene.data.xmat[body]
    return math.atan2(rotation[3], rotation[0])
