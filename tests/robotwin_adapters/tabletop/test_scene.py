"""Geometry of the compiled scene, and physics against textbook answers."""

import mujoco
import numpy as np
import pytest

from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.objects import OBJECTS, ObjectSpec
from robotwin_adapters.tabletop.scene import TABLE_TOP, Placement, Scene, SceneSpec, build_scene

CUBE, PUCK = OBJECTS[0], OBJECTS[6]


def scene_with(thing: ObjectSpec = CUBE, robot: str = "finch") -> Scene:
    return build_scene(
        SceneSpec(EMBODIMENTS[robot], thing, PUCK, Placement(0.0, -0.1, 0.4), Placement(0.2, 0.0, 0.0))
    )


def run(scene: Scene, seconds: float) -> None:
    for _ in range(round(seconds / scene.model.opt.timestep)):
        mujoco.mj_step(scene.model, scene.data)
    mujoco.mj_kinematics(scene.model, scene.data)


def free_joint(scene: Scene, body: int) -> tuple[int, int]:
    joint = scene.model.body_jntadr[body]
    return int(scene.model.jnt_qposadr[joint]), int(scene.model.jnt_dofadr[joint])


def test_table_and_wall_are_where_robotwin_has_them() -> None:
    model = scene_with().model
    table, wall = model.geom("table"), model.geom("wall")
    assert table.pos[2] + table.size[2] == pytest.approx(TABLE_TOP)
    np.testing.assert_allclose(2 * table.size[:2], [1.2, 0.7])
    assert wall.pos[1] - wall.size[1] == pytest.approx(0.4)
    assert model.opt.timestep == 0.004


@pytest.mark.parametrize("name", EMBODIMENTS)
def test_arms_stand_apart_and_point_down_at_home(name: str) -> None:
    robot, scene = EMBODIMENTS[name], scene_with(robot=name)
    left, right = (scene.data.site_xpos[arm.tcp_site] for arm in (scene.left, scene.right))
    np.testing.assert_allclose(left * [-1, 1, 1], right, atol=1e-9)
    assert right[0] == pytest.approx(robot.base_spacing / 2)
    assert TABLE_TOP + 0.10 < right[2] < TABLE_TOP + 0.25
    approach = scene.data.site_xmat[scene.left.wrist_site].reshape(3, 3)[:, 0]
    np.testing.assert_allclose(approach, [0, 0, -1], atol=0.02)
    wrist = scene.data.site_xpos[scene.left.wrist_site]
    np.testing.assert_allclose(left - wrist, 0.12 * approach, atol=1e-9)
    assert scene.data.qpos[scene.left.joints] == pytest.approx(robot.home)


@pytest.mark.parametrize("name", EMBODIMENTS)
def test_arms_hold_still_at_home(name: str) -> None:
    scene = scene_with(robot=name)
    run(scene, 1.0)
    assert scene.data.qpos[scene.left.joints] == pytest.approx(EMBODIMENTS[name].home, abs=1e-3)
    assert scene.data.qpos[scene.right.fingers] == pytest.approx(
        EMBODIMENTS[name].gripper_opening / 2, abs=1e-3
    )


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: thing.name)
def test_objects_weigh_50_grams_and_rest_where_they_are_put(thing: ObjectSpec) -> None:
    scene = scene_with(thing)
    assert scene.model.body_mass[scene.body_a] == pytest.approx(0.05)
    before = scene.pose(scene.body_a)
    run(scene, 2.0)
    pose = scene.pose(scene.body_a)
    np.testing.assert_allclose(pose[:2], before[:2], atol=1e-3)
    assert pose[2] == pytest.approx(TABLE_TOP, abs=1e-3)
    np.testing.assert_allclose(pose[3:], before[3:], atol=5e-3)


def test_a_dropped_object_falls_freely_and_lands() -> None:
    scene = scene_with()
    position, _ = free_joint(scene, scene.body_a)
    scene.data.qpos[position + 2] = TABLE_TOP + 0.25
    run(scene, 0.2)
    # Half g t squared, plus half a step of the semi-implicit integrator.
    fallen = TABLE_TOP + 0.25 - scene.data.xpos[scene.body_a][2]
    assert fallen == pytest.approx(0.5 * 9.81 * 0.2 * (0.2 + 0.004), rel=1e-3)
    run(scene, 1.0)
    assert scene.data.xpos[scene.body_a][2] == pytest.approx(TABLE_TOP, abs=2e-3)


def test_a_sliding_object_stops_after_the_distance_of_coulomb_friction() -> None:
    scene = scene_with()
    run(scene, 0.5)
    _, velocity = free_joint(scene, scene.body_a)
    start = scene.data.xpos[scene.body_a].copy()
    scene.data.qvel[velocity + 1] = 0.6
    run(scene, 1.0)
    # v squared / (2 mu g) with mu = 0.5; the contact is soft, hence the tolerance.
    assert scene.data.xpos[scene.body_a][1] - start[1] == pytest.approx(0.6**2 / (2 * 0.5 * 9.81), rel=0.15)


def test_clutter_is_in_the_model() -> None:
    spec = scene_with().spec
    clutter = ((OBJECTS[2], Placement(-0.4, 0.2, 0.0)), (OBJECTS[3], Placement(0.4, 0.2, 0.0)))
    scene = build_scene(
        SceneSpec(spec.embodiment, spec.object_a, spec.object_b, spec.place_a, spec.place_b, clutter)
    )
    np.testing.assert_allclose(scene.data.body("clutter_1").xpos[:2], [0.4, 0.2])
    assert scene.model.nq == scene_with().model.nq + 14
