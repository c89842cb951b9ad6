"""Hand points of recorded poses, against the simulator's own idea of where its hands are."""

import mujoco
import numpy as np
import pytest

from robotwin_adapters.robotwin.dataset import RobotwinDataset
from robotwin_adapters.tabletop.collect import collect_all
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.record import RecordingConfig
from robotwin_adapters.tabletop.simulate import run_episode
from worldmodel.data.clips import ClipConfig, cut_clip
from worldmodel.data.transitions import clip_transitions, read_rows
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.pose_maps import HAND_POINTS, PoseMapsConfig, hand_points

ROBOT, SEED, SIZE = "finch", 3, 24
CLIP = ClipConfig(num_frames=33, height=SIZE, width=SIZE)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("poses")
    cameras = ("desk", "left_wrist")
    config = RecordingConfig("babble", ROBOT, cameras, SIZE, SIZE, supersample=False)
    collect_all(folder, [config], episodes=1, seed=SEED, workers=1)
    return folder


@pytest.fixture(scope="module")
def simulated():
    """World positions of tool and fingers of the left hand at the recorded frames."""
    places = []

    def look(scene, _):
        copy = mujoco.MjData(scene.model)
        copy.qpos[:] = scene.data.qpos
        mujoco.mj_kinematics(scene.model, copy)
        tool = copy.site_xpos[scene.left.tcp_site]
        # A finger's body starts at the wrist and slides sideways: its shift is the finger's, too.
        wrist = copy.site_xpos[scene.left.wrist_site]
        fingers = [copy.body(f"left_finger{number}").xpos - wrist + tool for number in (1, 2)]
        places.append([tool, *fingers])

    run_episode("babble", EMBODIMENTS[ROBOT], SEED, look)
    return np.array(places)


def points_of(folder, camera, space="measured_poses"):
    config = ClipConfig(**{**CLIP.__dict__, "camera": camera})
    episode = RobotwinDataset(folder, action_space=space)[0]
    _, actions = cut_clip(episode, 0, config)
    rows = read_rows(ActionConfig(pose_maps=PoseMapsConfig()), clip_transitions(episode, 0, actions, config))
    return episode, hand_points(rows["poses"][:, -1], rows["projections"])


def test_projected_hands_are_where_the_simulator_has_them(recorded, simulated):
    episode, points = points_of(recorded, "desk_camera")
    camera = episode.cameras["desk_camera"]
    seen = simulated[1 : CLIP.num_frames] @ camera.extrinsics[:, :3].T + camera.extrinsics[:, 3]
    pixels = seen @ camera.intrinsics.T
    places = pixels[..., :2] / pixels[..., 2:]
    ours = SIZE * points[:, [HAND_POINTS.index(name) for name in ("tool", "finger", "other finger")], :2]
    assert np.abs(ours[:, 0].numpy() - places[:, 0]).max() < 0.15  # pixels; poses are one physics step older
    # Fingers stand where they are commanded: on their way there, and squeezing an object, they do not.
    assert np.median(np.abs(ours[:, 1:].numpy() - places[:, 1:])) < 0.25
    assert (points[:, : len(HAND_POINTS) - 1, 3] == 1).all()


def test_a_camera_on_the_wrist_sees_its_own_hand_at_rest_and_the_other_one_move(recorded):
    episode, points = points_of(recorded, "left_camera")
    assert episode.cameras["left_camera"].extrinsics.ndim == 3
    tool = HAND_POINTS.index("tool")
    own, other = points[:, tool, :2], points[:, len(HAND_POINTS) + tool, :2]
    assert (SIZE * own).std(0).max() < 0.1
    assert (own > 0).all()
    assert (own < 1).all()
    assert (SIZE * other).std(0).max() > 1


def test_commands_lead_the_measured_poses(recorded):
    _, commanded = points_of(recorded, "desk_camera", "pose_commands")
    _, measured = points_of(recorded, "desk_camera")
    behind = SIZE * (commanded - measured)[..., :2].norm(dim=-1)
    assert 0 < behind.max() < 3
    # An arm follows its target about one frame late.
    ahead = SIZE * (commanded[:-1] - measured[1:])[..., :2].norm(dim=-1)
    assert ahead.mean() < 0.5 * behind.mean()
