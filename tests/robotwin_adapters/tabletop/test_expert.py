"""The experts: that contact and friction do the work, and that it succeeds."""

import itertools

import numpy as np
import pytest

from robotwin_adapters.tabletop.arms import SIDES
from robotwin_adapters.tabletop.control import ArmController, Frame
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.expert import CARRY_FRAMES, RETREAT, choose_grasp, place_a_beside_b
from robotwin_adapters.tabletop.kinematics import ArmKinematics
from robotwin_adapters.tabletop.objects import OBJECTS, ObjectSpec
from robotwin_adapters.tabletop.scene import TABLE_TOP, Placement, Scene, SceneSpec, build_scene
from robotwin_adapters.tabletop.simulate import run_episode
from robotwin_adapters.tabletop.tasks import LIFTED, arm_side

TASK = "place_a2b_left"


def ignore(scene: Scene, frame: Frame) -> None:
    pass


def grasped(
    thing: ObjectSpec, robot: str = "finch", *, slippery: bool = False
) -> tuple[ArmController, ArmKinematics]:
    """Close the right hand on A and lift it by the expert's first four primitives."""
    b = OBJECTS[0] if thing != OBJECTS[0] else OBJECTS[1]
    spec = SceneSpec(EMBODIMENTS[robot], thing, b, Placement(0.1, -0.1, 0.5), Placement(-0.1, 0.0, 0.0))
    scene = build_scene(spec)
    if slippery:
        scene.model.geom_friction[:, 0] = 0.01
    controller = ArmController(scene, ignore)
    controller.settle()
    arm = ArmKinematics(scene, scene.right)
    grasp = choose_grasp(TASK, scene, arm)
    ready = arm.solve(grasp.backed_off(0.1), arm.aimed_home(grasp.position))
    assert ready is not None
    controller.move("right", arm.direct_path(arm.home, ready))
    for pose, opening in ((grasp, 0.0), (grasp.backed_off(RETREAT), None)):
        path = arm.straight_path(controller.arm_targets["right"], pose)
        assert path is not None
        controller.move("right", path)
        if opening is not None:
            controller.grip("right", opening)
    return controller, arm


def height(controller: ArmController) -> float:
    return float(controller.scene.data.xpos[controller.scene.body_a][2]) - TABLE_TOP


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: thing.name)
def test_every_object_is_lifted_and_held_and_falls_when_released(thing: ObjectSpec) -> None:
    controller, _ = grasped(thing)
    assert height(controller) == pytest.approx(RETREAT, abs=0.01)
    controller.primitive(500, lambda step: None)
    assert height(controller) == pytest.approx(RETREAT, abs=0.01)
    scene = controller.scene
    touching = {
        scene.model.body(scene.model.geom_bodyid[geom]).name
        for contact in scene.data.contact
        for geom in contact.geom
        if scene.body_a in scene.model.geom_bodyid[contact.geom]
    }
    assert touching == {"object_a", "right_finger1", "right_finger2"}
    controller.grip("right", 1.0)
    assert height(controller) < 0.05


def test_without_friction_nothing_is_lifted() -> None:
    controller, _ = grasped(OBJECTS[0], slippery=True)
    assert height(controller) < 0.01


def test_under_contact_the_fingers_stop_while_the_command_goes_on() -> None:
    controller, _ = grasped(OBJECTS[0], "crane")
    assert controller.gripper_targets["right"] == 0.0
    # A cube of 7.2 cm between the pads.
    assert controller.scene.data.qpos[controller.scene.right.fingers].sum() == pytest.approx(0.072, abs=2e-3)


def test_open_fingers_keep_clear_of_b() -> None:
    # Closing along y, a finger would come down on B 0.1 m away; along x there is room.
    spec = SceneSpec(
        EMBODIMENTS["heron"], OBJECTS[0], OBJECTS[6], Placement(0.1, -0.15, 0.0), Placement(0.1, -0.05, 0.0)
    )
    scene = build_scene(spec)
    grasp = choose_grasp(TASK, scene, ArmKinematics(scene, scene.right))
    assert abs(grasp.rotation[0, 1]) == pytest.approx(1.0)


def test_a_goal_out_of_reach_is_a_failure_not_a_crash() -> None:
    spec = SceneSpec(
        EMBODIMENTS["wren"], OBJECTS[0], OBJECTS[1], Placement(0.2, -0.1, 0.0), Placement(-0.5, 0.3, 0.0)
    )
    controller = ArmController(build_scene(spec), ignore)
    controller.settle()
    assert place_a_beside_b(TASK, controller.scene, controller) is False


@pytest.mark.parametrize("name", EMBODIMENTS)
@pytest.mark.parametrize("task", ["place_a2b_left", "place_a2b_right"])
def test_the_expert_succeeds_with_one_arm_in_a_sensible_time(task: str, name: str) -> None:
    frames: list[Frame] = []
    outcomes = []
    for seed in (0, 1, 2):
        frames.clear()
        outcome = run_episode(task, EMBODIMENTS[name], seed, lambda scene, frame: frames.append(frame))
        outcomes.append(outcome)
        assert 90 <= outcome.num_frames == len(frames) <= 165
        idle = "left" if outcome.arm == "right" else "right"
        assert all(getattr(frame, f"{idle}_gripper") == 1.0 for frame in frames)
        np.testing.assert_array_equal(
            [getattr(frame, f"{idle}_arm") for frame in frames], [EMBODIMENTS[name].home] * len(frames)
        )
    assert all(outcome.success for outcome in outcomes)


def test_seven_primitives_leave_their_marks() -> None:
    frames: list[Frame] = []
    outcome = run_episode(TASK, EMBODIMENTS["finch"], 4, lambda scene, frame: frames.append(frame))
    vectors = np.array([frame.vector for frame in frames])
    # After one primitive and before the next the same state is recorded twice: six inner boundaries. While a
    # gripper holds there are equal commands too, so count only pairs of equal measured joints.
    measured = np.array([np.concatenate([f.left_arm_measured, f.right_arm_measured]) for f in frames])
    doubles = sum(np.array_equal(one, two) for one, two in itertools.pairwise(measured))
    assert doubles == 6
    gripper = vectors[:, 13 if outcome.arm == "right" else 6]
    assert gripper[0] == gripper[-1] == 1.0
    assert gripper.min() == 0.0
    # The hand ends where it let go: no retreat, no homing.
    working = vectors[:, 7:13] if outcome.arm == "right" else vectors[:, :6]
    np.testing.assert_array_equal(working[-22:], np.broadcast_to(working[-1], (22, 6)))


@pytest.mark.slow
@pytest.mark.parametrize("name", EMBODIMENTS)
@pytest.mark.parametrize("task", ["place_a2b_left", "place_a2b_right"])
def test_success_rate(task: str, name: str) -> None:
    wins = sum(run_episode(task, EMBODIMENTS[name], seed, ignore).success for seed in range(100))
    assert wins >= 95


@pytest.mark.parametrize("robot", ["finch", "crane"])
def test_a_is_carried_for_half_a_minute_and_never_lost(robot: str) -> None:
    gaps, heights = [], []

    def watch(scene: Scene, frame: Frame) -> None:
        side = arm_side(scene.spec)
        tool = scene.data.site_xpos[scene.arm(side).tcp_site]
        place = scene.data.xpos[scene.body_a]
        is_closed = (frame.left_gripper, frame.right_gripper)[SIDES.index(side)] == 0
        gaps.append(np.linalg.norm(tool - place) if is_closed else 0.0)
        heights.append(place[2] - TABLE_TOP)

    outcome = run_episode("carry", EMBODIMENTS[robot], 2, watch)
    assert outcome.success
    assert outcome.num_frames >= CARRY_FRAMES
    assert max(gaps) < 0.08  # it stays between the fingers
    assert np.ptp(heights) > 0.1
    assert heights[-1] > LIFTED
