import numpy as np
import pytest

from robotwin_adapters.tabletop.control import Frame
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.scene import TABLE_TOP, Scene
from robotwin_adapters.tabletop.simulate import EpisodeOutcome, run_episode


class Watch:
    """Keeps the frames, how low the fingertips came, and who touched whom."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.lowest = np.inf
        self.touches: set[frozenset[str]] = set()

    def __call__(self, scene: Scene, frame: Frame) -> None:
        self.frames.append(frame)
        tips = (scene.data.site_xpos[arm.tcp_site][2] for arm in (scene.left, scene.right))
        self.lowest = min(self.lowest, *tips)
        for contact in scene.data.contact:
            bodies = scene.model.geom_bodyid[contact.geom]
            self.touches.add(frozenset(scene.model.body(body).name.split("_")[0] for body in bodies))


def babbled(name: str, seed: int, hold: str = "") -> tuple[Watch, EpisodeOutcome]:
    watch = Watch()
    return watch, run_episode("babble", EMBODIMENTS[name], seed, watch, hold=hold)


@pytest.mark.parametrize("name", EMBODIMENTS)
def test_both_arms_and_grippers_move_smoothly_above_the_table(name: str) -> None:
    watch, outcome = babbled(name, 1)
    robot = EMBODIMENTS[name]
    vectors = np.array([frame.vector for frame in watch.frames])
    assert outcome.success
    assert outcome.arm == "both"
    assert 60 <= len(vectors) <= 103
    assert np.all(np.ptp(vectors, axis=0)[[0, 1, robot.joints_per_arm + 1, robot.joints_per_arm + 2]] > 0.1)
    assert np.all(np.ptp(vectors, axis=0)[[robot.joints_per_arm, -1]] > 0.1)
    arms = np.delete(vectors, [robot.joints_per_arm, -1], axis=1)
    assert np.abs(np.diff(arms, axis=0)).max() <= 1.01 * 15 * 0.004 * robot.joint_speed
    assert watch.lowest > TABLE_TOP + 0.015
    # The table belongs to the body "world".
    assert not watch.touches & {frozenset({"world", side}) for side in ("left", "right")}


def test_some_episodes_push_objects_and_some_leave_them() -> None:
    moved = []
    for seed in range(8):
        _, outcome = babbled("finch", seed)
        moved.append(np.linalg.norm(outcome.end_poses[:, :2] - outcome.start_poses[:, :2], axis=1).max())
        assert np.all(outcome.end_poses[:, 2] > TABLE_TOP - 0.01)
    assert sum(distance > 0.05 for distance in moved) >= 2
    assert sum(distance < 0.001 for distance in moved) >= 2


@pytest.mark.parametrize(("hold", "moving"), [("left", "right"), ("right", "left")])
def test_a_held_arm_stays_at_home_and_the_other_is_commanded_as_if_both_moved(hold: str, moving: str) -> None:
    free, _ = babbled("finch", 3)
    held, outcome = babbled("finch", 3, hold)
    assert outcome.arm == moving
    assert len(held.frames) == len(free.frames)
    for one, both in zip(held.frames, free.frames, strict=True):
        assert getattr(one, f"{hold}_arm").tolist() == list(EMBODIMENTS["finch"].home)
        assert getattr(one, f"{hold}_gripper") == 1.0
        assert getattr(one, f"{moving}_arm").tolist() == getattr(both, f"{moving}_arm").tolist()
        assert getattr(one, f"{moving}_gripper") == getattr(both, f"{moving}_gripper")
