"""One door to every format: what is found, in which order, and what is said when nothing is."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.actions import POSE_NAMES
from robotwin_adapters.lerobot.write import write_lerobot
from robotwin_adapters.mapping import mapping_text
from robotwin_adapters.open_dataset import (
    JoinedDatasets,
    action_space_for,
    describe_format,
    open_as_trained,
    open_dataset,
)
from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode
from tests.robotwin_adapters.lerobot.test_write import Episodes, smooth_episode
from tests.robotwin_adapters.test_video_folder import write_ctrl_world
from worldmodel.data.clips import ClipConfig
from worldmodel.data.index import index_episodes
from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.data.provenance import TrainedOn
from worldmodel.data.splits import SplitConfig
from worldmodel.serving.play.run import present_episodes

DATA = Path(__file__).parent / "data"
ROBOTS = Path(__file__).parents[2] / "../shared/data/robots"


def write_robotwin(folder: Path, count: int = 2) -> None:
    frames = np.full((5, 32, 32, 3), 90, np.uint8)
    for index in range(count):
        arm = np.full((5, 6), 0.1 * index)
        poses = np.tile([0.1, 0.2, 0.8, 1.0, 0.0, 0.0, 0.0], (5, 1))
        cameras = {"head_camera": CameraRecord(frames)}
        episode = RobotwinEpisode(arm, np.ones(5), arm, np.ones(5), cameras, poses, poses)
        write_robotwin_episode(folder, index, episode)


WRITERS: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "lerobot_v21": (lambda p: shutil.copytree(DATA / "lerobot_v21", p), "LeRobot v2.1", 2),
    "lerobot_v30": (lambda p: shutil.copytree(DATA / "lerobot_v30", p), "LeRobot v3.0", 2),
    "videos": (lambda p: write_ctrl_world(p), "videos + json annotations", 1),
    "robotwin": (lambda p: write_robotwin(p), "RoboTwin", 2),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_format_is_seen_from_the_folder(tmp_path: Path, kind: str) -> None:
    write, name, count = WRITERS[kind]
    write(tmp_path / "set")
    source = pickle.loads(pickle.dumps(open_dataset(tmp_path / "set")))
    assert (describe_format(source), len(source)) == (name, count)
    episode = source[count - 1]
    reader = next(iter(episode.frames.values()))
    assert reader.read([0]).shape == (1, *reader.size, 3)
    assert len(reader) == episode.num_frames


def test_a_tree_of_datasets_is_one_source(tmp_path: Path) -> None:
    WRITERS["lerobot_v21"][0](tmp_path / "b/lerobot")
    write_ctrl_world(tmp_path / "a/videos_set")
    write_robotwin(tmp_path / "c/place_a2b_left/bot")
    source = open_dataset(tmp_path)
    assert isinstance(source, JoinedDatasets)
    uids = [source[index].uid for index in range(len(source))]
    assert len(set(uids)) == len(uids) == 5
    assert "a/videos_set/train/2" in uids
    assert "b/lerobot/episode_000001" in uids
    assert source[-1].uid == uids[-1]
    with pytest.raises(IndexError):
        source[5]
    assert describe_format(source) == "RoboTwin, videos + json annotations, LeRobot v2.1"


def test_links_are_followed_and_no_folder_is_seen_twice(tmp_path: Path) -> None:
    write_robotwin(tmp_path / "store" / "pick")
    shutil.copytree(DATA / "lerobot_v30", tmp_path / "store" / "wipe")
    data = tmp_path / "data"
    data.mkdir()
    for name in ("pick", "wipe"):
        (data / name).symlink_to(tmp_path / "store" / name)
    (data / "again").symlink_to(data)  # a loop
    plain, linked = open_dataset(tmp_path / "store"), open_dataset(data)
    assert len(linked) == len(plain) == 4
    assert {linked[i].uid for i in range(4)} == {plain[i].uid for i in range(4)}


def test_uids_do_not_depend_on_what_stands_beside(tmp_path: Path) -> None:
    WRITERS["lerobot_v21"][0](tmp_path / "b")
    alone = {open_dataset(tmp_path)[index].uid for index in range(2)}
    WRITERS["lerobot_v30"][0](tmp_path / "a")
    together = open_dataset(tmp_path)
    assert alone <= {together[index].uid for index in range(len(together))}


def test_a_mapping_reaches_into_a_tree(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_ctrl_world(tmp_path / name)
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("embodiment: arm\n")
    source = open_dataset(tmp_path, mapping=mapping)
    assert [source[i].embodiment for i in range(len(source))] == ["arm", "arm"]


def test_camera_is_passed_on(tmp_path: Path) -> None:
    write_robotwin(tmp_path / "set")
    assert list(open_dataset(tmp_path / "set", camera="head_camera")[0].frames) == ["head_camera"]
    assert list(open_dataset(DATA / "lerobot_v30", camera="cam_high")[0].frames) == ["cam_high"]


@pytest.mark.parametrize(
    ("word", "space"),
    [
        ("", "joint_commands"),
        ("joint_commands", "joint_commands"),
        ("measured_poses", "measured_poses"),
    ],
)
def test_the_action_space_is_passed_on(tmp_path: Path, word: str, space: str) -> None:
    write_robotwin(tmp_path / "a")
    write_robotwin(tmp_path / "b")
    episode = open_dataset(tmp_path, action_space=word)[3]
    assert episode.action_space == space
    assert (episode.action_names == POSE_NAMES) == (space == "measured_poses")


def test_commanded_poses_are_not_in_robotwins_files(tmp_path: Path) -> None:
    write_robotwin(tmp_path)
    with pytest.raises(ValueError, match=r"hdf5: the file holds no commanded poses, only measured ones"):
        open_dataset(tmp_path, action_space="pose_commands")[0]
    with pytest.raises(ValueError, match="action_space is one of joint_commands, pose_commands, measured_"):
        open_dataset(tmp_path, action_space="joints")
    measured = open_dataset(tmp_path, action_space="measured_poses")[0]
    assert "poses are measured, grippers are commanded; the file holds no commanded poses" in measured.notes


def test_the_space_of_a_model_is_in_its_scales() -> None:
    poses, joints = (
        ActionStats(names, *((low,) * len(names) for low in (0.0, 1.0, 0.0, 1.0)), 2, space)
        for names, space in ((POSE_NAMES, "measured_poses"), (("a", "b"), ""))
    )
    assert action_space_for(ActionNormalizer({"finch": poses, "wren": poses})) == "measured_poses"
    assert action_space_for(ActionNormalizer({"finch": joints})) == ""
    assert action_space_for(ActionNormalizer({"finch": joints, "wren": poses})) == ""


def test_other_formats_hold_one_kind_of_actions(tmp_path: Path) -> None:
    write_ctrl_world(tmp_path)
    assert open_dataset(tmp_path)[0].action_space == "measured_poses"
    assert open_dataset(tmp_path, action_space="measured_poses")[0].action_space == "measured_poses"
    with pytest.raises(ValueError, match=r"asked for joint_commands .* but its actions are measured_poses"):
        open_dataset(tmp_path, action_space="joint_commands")
    assert open_dataset(DATA / "lerobot_v30")[0].action_space == ""
    with pytest.raises(ValueError, match="but the data do not state whether actions were commanded"):
        open_dataset(DATA / "lerobot_v30", action_space="measured_poses")


def test_nothing_found_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(
        ValueError,
        match=r"(?s)no supported dataset. Found 1 .txt.*Looked for.*RoboTwin.*LeRobot.*annotation/",
    ):
        open_dataset(tmp_path)
    with pytest.raises(ValueError, match="no such file or folder"):
        open_dataset(tmp_path / "gone")
    with pytest.raises(ValueError, match="no supported dataset"):
        open_dataset(tmp_path / "notes.txt")


def test_written_datasets_open_again(tmp_path: Path) -> None:
    write_lerobot(Episodes((smooth_episode(0, 6),)), tmp_path / "set")
    assert describe_format(open_dataset(tmp_path / "set")) == "LeRobot v3.0"


def test_real_sets_of_two_formats_are_one_tree(tmp_path: Path) -> None:
    if not ROBOTS.is_dir():
        pytest.skip("no shared robot data here")
    for name in ("droid_franka_real", "lerobot_v20_gr1_sim"):
        (tmp_path / name).symlink_to((ROBOTS / name).resolve())
    source = open_dataset(tmp_path, verify=False)
    assert len(source) == 29
    assert {source[0].embodiment, source[28].embodiment} == {"droid_new_setup", "GR1ArmsOnly"}


@pytest.mark.parametrize("path", ["", "  "])
def test_an_empty_path_is_not_the_current_folder(path: str) -> None:
    with pytest.raises(ValueError, match="no dataset at an empty path"):
        open_dataset(path)


def test_a_model_is_given_data_as_in_its_training(tmp_path: Path) -> None:
    root = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))
    file = tmp_path / "names.yaml"
    file.write_text("embodiment: arm\nfps: 5\n")
    text = mapping_text(str(file))
    assert json.loads(text) == {"embodiment": "arm", "fps": 5.0}
    known = TrainedOn.from_dict(TrainedOn(SplitConfig(), (), True, text, 0.5).to_dict())
    assert (known.on_bad, known.static_tolerance) == ("skip", 0.5)
    normalizer = ActionNormalizer({"bot": ActionStats(("a",), (0.0,), (1.0,), (0.0,), (1.0,), 1)})
    assert open_as_trained(root, normalizer, known)[0].embodiment == "arm"
    assert open_as_trained(root, normalizer, known, mapping="{embodiment: other}")[0].embodiment == "other"
    assert open_as_trained(root, normalizer, known, mapping="{}")[0].embodiment != "arm"
    wrong = replace(known, mapping='{"action_keys": ["gone"]}')
    with pytest.raises(ValueError, match=r"names .gone., .*another mapping: --mapping YAML"):
        open_as_trained(root, normalizer, wrong)


def test_a_missing_video_is_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))
    next(root.glob("videos/**/*000000.mp4")).unlink()
    index = index_episodes([open_dataset(root, verify=False)], ClipConfig(num_frames=5, height=16, width=16))
    assert [record.uid for record in index.records] == ["episode_000001"]
    assert "episodes left out: 1, the first: no video file at " in caplog.text
    shown = present_episodes(open_dataset(root, verify=False))
    assert [episode.uid for episode in (shown[0],)] == ["episode_000001"]
    assert len(shown) == 1
