from dataclasses import replace

import mujoco
import numpy as np
import pytest

from robotwin_adapters.tabletop.cameras import DESK, cam2world_gl, camera_pose
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.record import RecordingConfig, SimulatedEpisode, record_episode
from robotwin_adapters.tabletop.render import Renderer
from robotwin_adapters.tabletop.simulate import run_episode

SMALL = RecordingConfig("place_a2b_left", "finch", width=24, height=16, supersample=False)


def recorded(config: RecordingConfig, seed: int = 0) -> SimulatedEpisode:
    recording = record_episode(config, seed)
    assert recording is not None
    return recording


def test_pictures_are_those_of_the_running_simulation() -> None:
    # Drawing happens after the episode, from stored joint positions, and must show what a live camera sees.
    pictures, commands = [], []

    def draw_live(scene, frame) -> None:
        if not pictures:
            draw_live.renderer = Renderer(scene.model, DESK, 24, 16, supersample=False)
        pictures.append(draw_live.renderer.render(scene.data))
        commands.append(frame.left_arm)

    outcome = run_episode("place_a2b_left", EMBODIMENTS["finch"], 0, draw_live)
    recording = recorded(SMALL)
    assert outcome.num_frames == len(pictures)
    np.testing.assert_array_equal(recording.cameras["desk_camera"].rgb, np.array(pictures))
    np.testing.assert_array_equal(recording.left_arm, np.array(commands))
    assert len(np.unique(np.array(pictures), axis=0)) > 50


@pytest.mark.parametrize(("embodiment", "joints"), [("wren", 6), ("crane", 7)])
def test_every_camera_and_number_is_there(embodiment: str, joints: int) -> None:
    names = ("desk", "head", "front", "left_wrist", "right_wrist")
    recording = recorded(replace(SMALL, task="babble", embodiment=embodiment, cameras=names))
    count = len(recording.left_gripper)
    assert recording.left_arm.shape == recording.right_arm.shape == (count, joints)
    assert recording.left_endpose.shape == recording.right_endpose.shape == (count, 7)
    expected = {"desk_camera", "head_camera", "front_camera", "left_camera", "right_camera"}
    assert set(recording.cameras) == expected
    for name, seen in recording.cameras.items():
        assert seen.rgb.shape == (count, 16, 24, 3)
        moves = not np.array_equal(seen.cam2world_gl[0], seen.cam2world_gl[count // 2])
        assert moves == (name in ("left_camera", "right_camera"))
    assert recording.scene_info["task"] == "babble"
    assert recording.scene_info["embodiment"] == embodiment


def test_commanded_poses_change_nothing_that_was_recorded_before() -> None:
    # Written down before commanded poses were recorded.
    recording = recorded(SMALL)
    joints = [0.2316949, -0.6043087, 1.3074676, 0.0, 0.8676436, -0.0452789]
    pose = [0.1378437, -0.0174687, 0.9305669, 0.4261118, -0.5643304, 0.4262695, 0.5641402]
    assert len(recording.left_gripper) == 134
    np.testing.assert_allclose(recording.right_arm[30], joints, atol=1e-5)
    np.testing.assert_allclose(recording.right_endpose[30], pose, atol=1e-5)
    gap = np.linalg.norm(recording.right_commanded_endpose[:, :3] - recording.right_endpose[:, :3], axis=1)
    assert 0.001 < gap.mean() < 0.01
    np.testing.assert_allclose(recording.left_commanded_endpose, recording.left_endpose, atol=1e-3)


def test_randomized_episodes_differ_in_look_and_camera_but_not_by_chance() -> None:
    config = replace(SMALL, task="babble", randomize=True)
    one, same, other = recorded(config, 1), recorded(config, 1), recorded(config, 2)
    pictures, again = (recording.cameras["desk_camera"] for recording in (one, same))
    np.testing.assert_array_equal(pictures.rgb, again.rgb)
    assert not np.array_equal(pictures.cam2world_gl[0], other.cameras["desk_camera"].cam2world_gl[0])
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    clean = cam2world_gl(camera_pose(DESK, model, mujoco.MjData(model)))
    assert 0 < np.abs(pictures.cam2world_gl[0] - clean).max() < 0.1
    assert max(len(recorded(config, seed).scene_info["cluttered_table_info"]) for seed in range(1, 4)) > 0


def test_sentences_name_objects_side_and_arm() -> None:
    recording = recorded(replace(SMALL, task="place_a2b_right", width=16))
    arm = recording.scene_info["info"]["{a}"]
    first = recording.scene_info["info"]["{A}"].split("/")[0].split("_")[-1]
    for sentences in recording.instructions.values():
        assert len(set(sentences)) == len(sentences) >= 3
        assert any(f"the {arm} arm" in text for text in sentences)
        assert all("{" not in text and "right" in text and first in text for text in sentences)
        assert all(text[0].isupper() and text.endswith(".") for text in sentences)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "juggle"}, "place_a2b_left, place_a2b_right, babble, carry; got 'juggle'"),
        ({"embodiment": "ostrich"}, "finch, heron, wren, crane, swift; got 'ostrich'"),
        ({"cameras": ("desk", "moon")}, "got 'moon'"),
        ({"cameras": ("desk", "desk")}, "different cameras"),
        ({"cameras": ()}, "got none"),
        ({"renderer": "crayon"}, "ray or gl; got 'crayon'"),
        ({"height": 8}, "at least 16x16 pixels, got 24x8"),
    ],
)
def test_impossible_requests_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)
