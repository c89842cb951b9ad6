import numpy as np
import pytest

pytest.importorskip("mujoco")

from robotwin_adapters.actions import POSE_NAMES
from robotwin_adapters.tabletop.drive import DrivenTabletop, expert_commands, tool_pose
from robotwin_adapters.tabletop.record import RecordingConfig, record_episode

CONFIG = RecordingConfig("place_a2b_left", "heron", keep_failures=True)


@pytest.mark.parametrize("space", ["pose_commands", "joint_commands"])
def test_the_experts_commands_solve_the_task(space: str) -> None:
    scene = DrivenTabletop(CONFIG, 3, action_space=space)
    commands = expert_commands("place_a2b_left", "heron", 3, space)
    assert not scene.is_success
    assert all(scene.step(command) for command in commands)
    assert scene.is_success
    np.testing.assert_allclose(scene.command, commands[-1], atol=2e-3)


def test_a_scene_begins_as_the_recorded_episode_of_its_seed() -> None:
    recorded = record_episode(CONFIG, 5)
    assert recorded is not None
    scene = DrivenTabletop(CONFIG, 5)
    np.testing.assert_array_equal(scene.pictures()["desk_camera"], recorded.cameras["desk_camera"].rgb[0])
    intrinsic, extrinsic = scene.camera_matrices("desk_camera")
    np.testing.assert_array_equal(intrinsic, recorded.cameras["desk_camera"].intrinsic_cv[0])
    np.testing.assert_array_equal(extrinsic, recorded.cameras["desk_camera"].extrinsic_cv[0])


def test_going_back_repeats_what_happened() -> None:
    scene = DrivenTabletop(CONFIG, 0)
    commands = expert_commands("place_a2b_left", "heron", 0)[:12]
    for command in commands[:6]:
        scene.step(command)
    saved = scene.save()

    def rest() -> tuple[np.ndarray, np.ndarray]:
        for command in commands[6:]:
            scene.step(command)
        return scene.pictures()["desk_camera"], scene.frame.left_endpose

    first = rest()
    scene.restore(saved)
    for one, other in zip(first, rest(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_wild_commands_are_approached_and_said_to_be_out_of_reach() -> None:
    scene = DrivenTabletop(CONFIG, 0)
    before = scene.controller.arm_targets["left"].copy()
    wild = scene.command.copy()
    wild[POSE_NAMES.index("left_x")] = 9.0
    assert not scene.step(wild)
    moved = np.abs(scene.controller.arm_targets["left"] - before).max()
    assert 0 < moved < 0.6  # rad in 0.12 s: fast, and no throw
    with pytest.raises(ValueError, match="finite"):
        scene.step(np.full(16, np.nan))


def test_a_quaternion_without_length_means_no_turn() -> None:
    assert np.allclose(tool_pose(np.zeros(7)).rotation, np.eye(3))
