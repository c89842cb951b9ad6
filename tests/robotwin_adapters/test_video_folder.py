"""Folders of videos with annotations: JSON, NPZ, CSV, the shipped mappings, the real set, bad input."""

import csv
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robotwin_adapters import video_folder
from robotwin_adapters.annotations import read_annotation
from robotwin_adapters.mapping import DataMapping
from robotwin_adapters.video_folder import VideoFolderDataset
from worldmodel.config import load_config
from worldmodel.data.video import write_video

ROOT = Path(__file__).parents[2]
FRANKA = ROOT / "../shared/data/robots/droid_franka_real"
CONFIGS = ROOT / "configs/data"
LENGTH = 9


def frames(count: int, camera: int = 0) -> np.ndarray:
    y, x = np.mgrid[0:32, 0:64]
    return np.stack([np.stack([3 * x, 7 * y, 0 * x + 90 * camera + 8 * t], -1) for t in range(count)]).astype(
        np.uint8
    )


def states(count: int = LENGTH) -> np.ndarray:
    return np.arange(count * 7, dtype=np.float64).reshape(count, 7) / 10


def write_ctrl_world(root: Path, name: str = "2", extra: int = 0, **changes: Any) -> Path:
    """One episode with two views, as Ctrl-World stores it; returns the annotation."""
    videos = [f"videos/train/{name}/{camera}.mp4" for camera in range(2)]
    for camera, video in enumerate(videos):
        write_video(root / video, frames(LENGTH + extra, camera), fps=5)
    annotation = root / f"annotation/train/{name}.json"
    annotation.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "texts": ["put it there"],
        "video_length": LENGTH,
        "videos": [{"video_path": video} for video in videos],
        "states": states().tolist(),
        "nested": {"action": {"joint": states(3 * LENGTH).tolist()}},
    }
    annotation.write_text(json.dumps({**content, **changes}))
    return annotation


def test_ctrl_world_layout_needs_no_mapping(tmp_path: Path) -> None:
    for name in ("10", "2"):
        write_ctrl_world(tmp_path, name)
    source = VideoFolderDataset(tmp_path)
    assert [source[i].uid for i in range(len(source))] == ["train/2", "train/10"]
    episode = source[0]
    assert list(episode.frames) == ["0", "1"]
    assert np.array_equal(episode.robot_states, states())
    assert np.array_equal(episode.robot_actions, states()[1:])
    assert episode.fps == pytest.approx(5)
    assert episode.instructions == ("put it there",)
    assert "the action is the next state" in episode.notes
    assert np.abs(episode.frames["1"].read([8])[0].astype(int) - frames(9, 1)[8]).mean() < 5
    assert np.array_equal(
        pickle.loads(pickle.dumps(source))[1].frames["0"].read([3]), source[1].frames["0"].read([3])
    )


def test_one_frame_too_many_is_cut_and_said(tmp_path: Path) -> None:
    write_ctrl_world(tmp_path, extra=1)
    episode = VideoFolderDataset(tmp_path)[0]
    assert len(episode.frames["0"]) == LENGTH == episode.num_frames
    assert any("camera 0: 1 frame(s) more" in note for note in episode.notes)
    write_ctrl_world(tmp_path, extra=2)
    with pytest.raises(ValueError, match=r"0\.mp4: 11 frames, expected 9 as in 2\.json"):
        VideoFolderDataset(tmp_path)[0]


def test_irasim_layout_is_recognized(tmp_path: Path) -> None:
    pose, gripper, actions = states()[:, :6], states()[:, 6], states()[:-1] * 2
    annotation = {
        "state": pose.tolist(),
        "continuous_gripper_state": gripper.tolist(),
        "action": actions.tolist(),
    }
    (tmp_path / "annotation/val").mkdir(parents=True)
    (tmp_path / "annotation/val/7.json").write_text(json.dumps(annotation))
    write_video(tmp_path / "videos/val/7/rgb.mp4", frames(LENGTH), fps=4)
    episode = VideoFolderDataset(tmp_path)[0]
    assert np.array_equal(episode.robot_states, states())
    assert np.array_equal(episode.robot_actions, actions)
    named = VideoFolderDataset(tmp_path, mapping=CONFIGS / "irasim.yaml")[0]
    assert named.action_names[-1] == "gripper"
    assert np.array_equal(named.robot_actions, actions)


def test_mapping_file_reaches_nested_keys_with_a_stride(tmp_path: Path) -> None:
    write_ctrl_world(tmp_path)
    (tmp_path / "dataset.yaml").write_text(
        "action_keys: [nested.action.joint]\naction_stride: 3\ncameras: [front, wrist]\n"
        "embodiment: arm\nfps: 4.5\ntask: tidy\n"
    )
    episode = VideoFolderDataset(tmp_path, camera="wrist")[0]
    assert np.array_equal(episode.robot_actions, states(3 * LENGTH)[::3][:-1])
    assert (list(episode.frames), episode.embodiment, episode.fps, episode.task) == (
        ["wrist"],
        "arm",
        4.5,
        "tidy",
    )


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_npz_and_csv_annotations(tmp_path: Path, kind: str) -> None:
    write_video(tmp_path / "clips/a.front.mp4", frames(LENGTH), fps=5)
    if kind == "npz":
        np.savez(tmp_path / "a.npz", pose=states()[:, :2], grip=states()[:, 6])
        keys = "[pose, grip]"
    else:
        with (tmp_path / "a.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["x", "y", "grip"], *states()[:, [0, 1, 6]].tolist()])
        keys = "[x, y, grip]"
    (tmp_path / "dataset.yaml").write_text(
        f"annotation: '{{id}}.{kind}'\nvideo: 'clips/{{id}}.{{camera}}.mp4'\nstate_keys: {keys}\n"
    )
    episode = VideoFolderDataset(tmp_path)[0]
    assert (episode.uid, list(episode.frames)) == ("a", ["front"])
    assert np.array_equal(episode.robot_states, states()[:, [0, 1, 6]])


def test_pickles_in_npz_are_not_opened(tmp_path: Path) -> None:
    write_video(tmp_path / "a.front.mp4", frames(LENGTH), fps=5)
    np.savez(tmp_path / "a.npz", pose=np.array([{"x": 1}], dtype=object))
    (tmp_path / "dataset.yaml").write_text(
        "annotation: '{id}.npz'\nvideo: '{id}.{camera}.mp4'\nstate_keys: [pose]\n"
    )
    with pytest.raises(ValueError, match=r"a\.npz: cannot be read as npz"):
        VideoFolderDataset(tmp_path)[0]


def video(root: Path, camera: int = 0) -> Path:
    return root / f"videos/train/2/{camera}.mp4"


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "NaN": (
        lambda p: write_ctrl_world(p, states=[[float("nan")] * 7, *states()[1:].tolist()]),
        r"2\.json: 'states' has NaN or infinity in row 0",
    ),
    "ragged": (
        lambda p: write_ctrl_world(p, states=[[1.0], *states()[1:].tolist()]),
        r"2\.json: 'states' is not a table of numbers",
    ),
    "words": (lambda p: write_ctrl_world(p, states=["x"] * LENGTH), r"'states' is not a table of numbers"),
    "empty": (
        lambda p: write_ctrl_world(p, states=[]),
        r"'states' has shape \(0,\), expected rows of numbers",
    ),
    "object": (lambda p: write_ctrl_world(p, states={"a": 1}), r"'states' is not a table of numbers"),
    "one frame": (
        lambda p: write_ctrl_world(p, states=states(1).tolist(), video_length=1),
        r"2\.json: 1 frame\(s\), at least 2 are needed",
    ),
    "declared length": (
        lambda p: write_ctrl_world(p, video_length=8),
        r"2\.json: video_length is 8, the states have 9 rows",
    ),
    "length as text": (
        lambda p: write_ctrl_world(p, video_length="9"),
        r"'video_length' is '9', expected a whole",
    ),
    "fewer frames than rows": (
        lambda p: write_ctrl_world(p, states=states(12).tolist(), video_length=12),
        r"0\.mp4: 9 frames, expected 12 as in 2\.json",
    ),
    "list at the top": (
        lambda p: write_ctrl_world(p).write_text("[1, 2]"),
        r"2\.json: expected a JSON object, got list",
    ),
    "cut JSON": (
        lambda p: write_ctrl_world(p).write_text('{"states": [[1'),
        r"2\.json: not JSON",
    ),
    "video gone": (
        lambda p: (write_ctrl_world(p), video(p, 1).unlink()),
        r"2\.json: lists the videos .*found videos/train/2/0\.mp4",
    ),
    "all videos gone": (
        lambda p: (write_ctrl_world(p), video(p, 0).unlink(), video(p, 1).unlink()),
        r"2\.json: no video matches",
    ),
    "unreadable video": (
        lambda p: (write_ctrl_world(p), video(p).write_bytes(b"no video")),
        r"0\.mp4: cannot be read as a video",
    ),
    "texts": (lambda p: write_ctrl_world(p, texts=[1]), r"'texts' is '\[1\]', expected a text or a list"),
    "unknown keys": (
        lambda p: write_ctrl_world(p).write_text('{"poses": []}'),
        r"2\.json: keys poses are of no known layout; map them in dataset\.yaml",
    ),
    "typo in the mapping": (
        lambda p: (write_ctrl_world(p), (p / "dataset.yaml").write_text("state_key: [x]\n")),
        r"dataset\.yaml",
    ),
    "mapping leaves the folder": (
        lambda p: (write_ctrl_world(p), (p / "dataset.yaml").write_text("video: '../{id}/{camera}.mp4'\n")),
        r"a pattern stays inside the dataset folder",
    ),
    "missing key": (
        lambda p: (write_ctrl_world(p), (p / "dataset.yaml").write_text("state_keys: [nested.nothing]\n")),
        r"2\.json: no key 'nested\.nothing'",
    ),
    "names": (
        lambda p: (write_ctrl_world(p), (p / "dataset.yaml").write_text("state_names: [a, b]\n")),
        r"2\.json: 7 state dimensions, the mapping names 2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_has_one_message_with_the_file(tmp_path: Path, case: str) -> None:
    spoil, message = BAD[case]
    spoil(tmp_path)
    with pytest.raises(ValueError, match=message):
        VideoFolderDataset(tmp_path)[0]


def test_missing_camera_is_named(tmp_path: Path) -> None:
    write_ctrl_world(tmp_path)
    with pytest.raises(ValueError, match=r"2\.json: no camera 'wrist', it has 0, 1"):
        VideoFolderDataset(tmp_path, camera="wrist")[0]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_mappings_load(path: Path) -> None:
    assert load_config(DataMapping, str(path)) != DataMapping()


@pytest.mark.parametrize(("name", "count", "fps"), [("droid_subset", 11, 5), ("droid_new_setup", 13, 4)])
def test_real_franka_sets_load(name: str, count: int, fps: float) -> None:
    if not FRANKA.is_dir():
        pytest.skip("no shared robot data here")
    mapping = CONFIGS / "ctrl_world_franka.yaml"
    source = VideoFolderDataset(FRANKA / name, mapping=mapping, camera="exterior_1")
    assert len(source) == count
    for episode in (source[index] for index in range(count)):
        raw = json.loads(Path(episode.source).read_text())
        assert np.array_equal(episode.robot_states, np.array(raw["states"]))
        assert episode.num_frames == raw["video_length"] == len(episode.frames["exterior_1"])
        assert episode.fps == pytest.approx(fps)
        assert episode.frames["exterior_1"].size == (192, 320)
        assert episode.action_names == ("x", "y", "z", "roll", "pitch", "yaw", "gripper")


def test_an_archive_that_unpacks_to_gigabytes_is_refused_before_it_does(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", pose=np.zeros(1 << 24))
    with pytest.raises(ValueError, match=r"a.npz.*the archive claims \d+ bytes"):
        read_annotation(tmp_path / "a.npz")


def test_a_pattern_that_gives_two_episodes_the_same_videos_is_refused(tmp_path: Path) -> None:
    for name in ("1", "2"):
        write_ctrl_world(tmp_path, name)
    (tmp_path / "dataset.yaml").write_text("video: 'videos/{split}/1/{camera}.mp4'\n")
    with pytest.raises(ValueError, match=r"1\.json and .*2\.json would get the same videos.* lacks \{id\}"):
        VideoFolderDataset(tmp_path)


def test_one_video_per_episode_needs_no_camera_in_its_path(tmp_path: Path) -> None:
    (tmp_path / "annotation/test").mkdir(parents=True)
    actions = np.arange(2.0 * (LENGTH - 1)).reshape(-1, 2)
    content = {"actions": actions.tolist(), "video_path": "videos/test/7.mp4"}
    (tmp_path / "annotation/test/7.json").write_text(json.dumps(content))
    write_video(tmp_path / "videos/test/7.mp4", frames(LENGTH), fps=4)
    episode = VideoFolderDataset(tmp_path)[0]
    assert (episode.action_names, list(episode.frames)) == (("dx", "dy"), ["camera"])
    assert np.array_equal(episode.robot_actions, actions)
    assert episode.num_frames == LENGTH == len(episode.frames["camera"])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{id}{id}.json", "stands twice"),
        ("{1x}/{id}.json", "a word in braces"),
        ("{id.__class__}.json", "a word in braces"),
        ("{id!r:>999999999}.json", "a word in braces"),
        ("{}.json", "a word in braces"),
        ("".join(f"{{a{n}}}_" for n in range(20)) + ".json", "at most 3 fields"),
        ("*" * 3000, "at most 3 fields or stars"),
        ("a**/{id}.json", r"\*\* stands alone"),
    ],
)
def test_patterns_that_cannot_be_searched_for_are_refused(tmp_path: Path, pattern: str, message: str) -> None:
    for name in ("numbers", "_" * 200):
        (tmp_path / f"{name}.json").write_text("{}")
    (tmp_path / "dataset.yaml").write_text(json.dumps({"annotation": pattern}))
    with pytest.raises(ValueError, match=rf"dataset\.yaml.*{message}"):
        VideoFolderDataset(tmp_path)


def test_a_whole_number_of_hundreds_of_digits_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'states' is not a table of numbers"):
        video_folder._column(tmp_path / "a.json", "states", [[10**310, 1]])
