"""LeRobot reader: files written by LeRobot itself, the real v2.0 set, layout variants, and bad input."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robotwin_adapters.lerobot import rows
from robotwin_adapters.lerobot.dataset import LerobotDataset
from robotwin_adapters.lerobot.meta import Feature, fill_path, read_table
from worldmodel.data.video import write_video

DATA = Path(__file__).parents[1] / "data"
GR1 = Path(__file__).parents[3] / "../shared/data/robots/lerobot_v20_gr1_sim"
LENGTHS = (7, 9)


def true_state(episode: int, t: np.ndarray) -> np.ndarray:
    return np.stack([np.full(len(t), episode), 0.1 * t, -0.05 * t, t % 2], axis=1).astype(np.float32)


def true_frame(episode: int, t: int, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    frame = np.stack([2 * x, 3 * y, np.full_like(x, 60 * episode + 8 * t)], axis=-1).astype(np.uint8)
    frame[8:16, 2 * t + 4 : 2 * t + 12] = (250, 210, 20)
    return frame


@pytest.fixture
def v21(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))


@pytest.fixture
def v30(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "lerobot_v30", tmp_path / "v30"))


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def edit_column(path: Path, name: str, edit: Callable[[list[Any]], list[Any]], kind: Any = None) -> None:
    table = pq.read_table(path)
    column = pa.array(edit(table[name].to_pylist()), kind or table[name].type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)


@pytest.mark.parametrize("name", ["lerobot_v21", "lerobot_v30"])
@pytest.mark.parametrize("index", [0, 1])
def test_what_lerobot_wrote_is_what_we_read(name: str, index: int) -> None:
    source = LerobotDataset(DATA / name)
    episode, length = source[index], LENGTHS[index]
    times = np.arange(length)
    assert len(source) == 2
    assert np.array_equal(episode.robot_states, true_state(index, times))
    assert np.array_equal(episode.robot_actions, true_state(index, times + 1)[:-1])
    assert episode.action_names == episode.state_names == ("j0", "j1", "j2", "grip")
    assert (episode.fps, episode.embodiment, episode.task) == (10.0, "testbot", f"task {index}")
    assert "action[t] equals the next state state[t+1]" in episode.notes
    assert list(episode.frames) == ["cam_high", "cam_left_wrist"]
    wrist = episode.frames["cam_left_wrist"].read(times.tolist())
    assert np.array_equal(wrist, np.stack([true_frame(index, t, 32, 32) for t in times]))
    head = episode.frames["cam_high"].read(times[::-1].tolist())[::-1].astype(int)
    truth = np.stack([true_frame(index, t, 48, 64) for t in times])
    distance = np.abs(head[:, None] - truth[None]).mean(axis=(2, 3, 4))
    assert distance.argmin(axis=1).tolist() == times.tolist()
    assert distance.min(axis=1).max() < 6


@pytest.mark.parametrize("name", ["lerobot_v21", "lerobot_v30"])
def test_datasets_and_episodes_pickle(name: str) -> None:
    source = pickle.loads(pickle.dumps(LerobotDataset(DATA / name)))
    episode = pickle.loads(pickle.dumps(source[1]))
    for camera, reader in source[1].frames.items():
        assert np.array_equal(episode.frames[camera].read([4]), reader.read([4]))


def test_real_v20_set_loads() -> None:
    if not GR1.is_dir():
        pytest.skip("no shared robot data here")
    source = LerobotDataset(GR1)
    episodes = [source[index] for index in range(len(source))]
    assert [episode.num_frames for episode in episodes] == [416, 470, 470, 412, 328]
    first = episodes[0]
    assert (first.fps, first.embodiment) == (20.0, "GR1ArmsOnly")
    assert list(first.frames) == ["ego_view"]
    assert first.frames["ego_view"].size == (256, 256)
    # Body parts come from modality.json, since the names in info.json are only motor_0, motor_1, ...
    assert first.action_names[22] == "right_arm_0"
    assert first.instructions == ("pick the pear from the counter and place it in the plate",)
    assert any("observation.images.egoview left out" in note for note in first.notes)
    assert any("a command of its own, closer to state[t+1]" in note for note in first.notes)
    raw = pq.read_table(GR1 / "data/chunk-000/episode_000000.parquet")
    assert np.array_equal(first.robot_actions, np.array(raw["action"].to_pylist())[:-1])
    with pytest.raises(ValueError, match="no one camera 'egoview', the dataset has ego_view"):
        LerobotDataset(GR1, camera="egoview")


@pytest.mark.parametrize("camera", ["cam_high", "observation.images.cam_high", "high"])
def test_camera_by_key_name_or_ending(camera: str) -> None:
    assert list(LerobotDataset(DATA / "lerobot_v30", camera=camera)[0].frames) == ["cam_high"]


def test_unknown_camera_is_refused() -> None:
    with pytest.raises(ValueError, match="no one camera 'front', the dataset has cam_high, cam_left_wrist"):
        LerobotDataset(DATA / "lerobot_v30", camera="front")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ("action_0", "action_1", "action_2", "action_3")),
        ([["a", "b", "c", "d"]], ("a", "b", "c", "d")),
        ({"left": ["a", "b"], "right": ["c", "d"]}, ("a", "b", "c", "d")),
        ({"d": 3, "a": 0, "c": 2, "b": 1}, ("a", "b", "c", "d")),
        (["too", "few"], ("action_0", "action_1", "action_2", "action_3")),
    ],
)
def test_names_in_every_form(v21: Path, names: Any, expected: tuple[str, ...]) -> None:
    edit_json(v21 / "meta/info.json", lambda info: info["features"]["action"].update(names=names))
    assert LerobotDataset(v21)[0].action_names == expected


@pytest.mark.parametrize("word", ["motor", "action"])
def test_numbered_columns_are_named_by_modality_json(v21: Path, word: str) -> None:
    numbered = [f"{word}_{index}" for index in range(4)]
    edit_json(v21 / "meta/info.json", lambda info: info["features"]["action"].update(names=numbered))
    assert LerobotDataset(v21)[0].action_names == tuple(numbered)
    parts = {"arm": {"start": 0, "end": 3}, "gripper": {"start": 3, "end": 4}}
    (v21 / "meta/modality.json").write_text(json.dumps({"action": parts}))
    assert LerobotDataset(v21)[0].action_names == ("arm_0", "arm_1", "arm_2", "gripper_0")


@pytest.mark.parametrize(
    ("shape", "names", "size"),
    [
        ((48, 64, 3), ("height", "width", "channel"), (48, 64)),
        ((3, 48, 64), ("channels", "height", "width"), (48, 64)),
        ((3, 48, 64), (), (48, 64)),
        ((48, 64, 3), (), (48, 64)),
        ((64,), (), None),
    ],
)
def test_channels_first_or_last(shape: tuple[int, ...], names: tuple[str, ...], size: Any) -> None:
    assert Feature("video", shape, names).frame_size() == size


def test_declared_cameras_without_files_and_long_splits_are_fine(v21: Path) -> None:
    def edit(info: dict[str, Any]) -> None:
        info["features"]["observation.images.ghost"] = info["features"]["observation.images.cam_high"]
        info["splits"] = {"train": "0:100"}
        info["features"]["next.done"] = {"dtype": "bool", "shape": [1], "names": None}

    edit_json(v21 / "meta/info.json", edit)
    episode = LerobotDataset(v21)[1]
    assert list(episode.frames) == ["cam_high", "cam_left_wrist"]
    assert any("ghost left out" in note for note in episode.notes)


@pytest.mark.parametrize(
    ("edit", "first_action", "note"),
    [
        (
            lambda rows: [[r[0], r[1] - 0.1, r[2] + 0.05, 1 - r[3]] for r in rows],
            1,
            "equals state[t]: shifted",
        ),
        (lambda rows: [[r[0], r[1] + 0.01, r[2], r[3]] for r in rows], 0, "closer to state[t+1]"),
    ],
)
def test_action_against_state(v21: Path, edit: Any, first_action: int, note: str) -> None:
    path = v21 / "data/chunk-000/episode_000000.parquet"
    edit_column(path, "action", edit)
    actions = np.array(pq.read_table(path)["action"].to_pylist(), np.float32)
    episode = LerobotDataset(v21)[0]
    assert any(note in text for text in episode.notes), episode.notes
    assert np.array_equal(episode.robot_actions, actions[first_action:][: len(actions) - 1])


def test_video_that_runs_at_its_own_label_is_cut_by_frames(v30: Path) -> None:
    # LeRobot finds frames by time, so a v3.0 video at another rate would give other frames.
    write_video(
        v30 / "videos/observation.images.cam_high/chunk-000/file-000.mp4",
        [true_frame(0, t % 7, 48, 64) for t in range(16)],
        fps=30,
    )
    with pytest.raises(ValueError, match=r"file-000\.mp4: 30 fps, info\.json says 10"):
        LerobotDataset(v30)[1]


E0 = "data/chunk-000/episode_000000.parquet"
VIDEO0 = "videos/chunk-000/observation.images.cam_high/episode_000000.mp4"
BAD_V21: dict[str, tuple[Callable[[Path], object], str]] = {
    "NaN action": (
        lambda p: edit_column(p / E0, "action", lambda rows: [[float("nan")] * 4, *rows[1:]]),
        r"episode_000000\.parquet: column 'action' has NaN or infinity in row 0",
    ),
    "ragged action": (
        lambda p: edit_column(p / E0, "action", lambda rows: [[0.0], *rows[1:]], pa.list_(pa.float32())),
        r"episode_000000\.parquet: column 'action' should hold 4 numbers in every row",
    ),
    "text for numbers": (
        lambda p: edit_column(p / E0, "action", lambda rows: ["x"] * len(rows), pa.string()),
        r"episode_000000\.parquet: column 'action' is string, expected vectors of numbers",
    ),
    "rows missing": (
        lambda p: pq.write_table(pq.read_table(p / E0).slice(0, 5), p / E0),
        r"episode_000000\.parquet: 5 rows of episode 0, expected 7",
    ),
    "rows of another episode": (
        lambda p: shutil.copy(p / "data/chunk-000/episode_000001.parquet", p / E0),
        r"episode_000000\.parquet: 0 rows of episode 0, expected 7",
    ),
    "frame order": (
        lambda p: edit_column(p / E0, "frame_index", lambda rows: rows[::-1]),
        r"column 'frame_index' of episode 0 does not count up from 0",
    ),
    "timestamps": (
        lambda p: edit_column(p / E0, "timestamp", lambda rows: [float("nan")] * len(rows)),
        r"column 'timestamp' should have one finite number per row",
    ),
    "no action column": (
        lambda p: pq.write_table(pq.read_table(p / E0).drop_columns(["action"]), p / E0),
        r"episode_000000\.parquet: no column 'action'",
    ),
    "truncated parquet": (
        lambda p: (p / E0).write_bytes((p / E0).read_bytes()[:3000]),
        r"episode_000000\.parquet: cannot be read as parquet",
    ),
    "parquet gone": (lambda p: (p / E0).unlink(), r"episode_000000\.parquet: no such file"),
    "unreadable mp4": (
        lambda p: (p / VIDEO0).write_bytes(b"no video"),
        r"episode_000000\.mp4: cannot be read as a video",
    ),
    "mp4 gone": (lambda p: (p / VIDEO0).unlink(), r"no video file at .*episode_000000\.mp4"),
    "mp4 of another length": (
        lambda p: write_video(p / VIDEO0, [true_frame(0, 0, 48, 64)] * 6, 10),
        r"episode_000000\.mp4: 6 frames, expected 7",
    ),
    "mp4 of another size": (
        lambda p: write_video(p / VIDEO0, [true_frame(0, 0, 64, 64)] * 7, 10),
        r"'observation.images.cam_high' is \(64, 64\), info\.json says \(48, 64\)",
    ),
    "info is a list": (
        lambda p: (p / "meta/info.json").write_text("[]"),
        r"info\.json: expected a JSON object, got list",
    ),
    "info is cut": (
        lambda p: (p / "meta/info.json").write_text('{"codebase_version": '),
        r"info\.json: not JSON",
    ),
    "unknown version": (
        lambda p: edit_json(p / "meta/info.json", lambda i: i.update(codebase_version="v9")),
        r"codebase_version is 'v9', this reader knows v2\.0, v2\.1, v3\.0",
    ),
    "fps": (
        lambda p: edit_json(p / "meta/info.json", lambda i: i.update(fps="ten")),
        r"fps is 'ten', expected a positive number",
    ),
    "shape": (
        lambda p: edit_json(p / "meta/info.json", lambda i: i["features"]["action"].update(shape=[5])),
        r"column 'action' should hold 5 numbers in every row",
    ),
    "no cameras": (
        lambda p: edit_json(
            p / "meta/info.json",
            lambda i: [i["features"].pop(key) for key in list(i["features"]) if "images" in key],
        ),
        r"info\.json: no usable camera",
    ),
    "escaping path": (
        lambda p: edit_json(p / "meta/info.json", lambda i: i.update(data_path="../{episode_index}.parquet")),
        r"gives '\.\./0\.parquet', not a path in the dataset",
    ),
    "a list for a path": (
        lambda p: edit_json(p / "meta/info.json", lambda i: i.update(data_path=[0] * 1000)),
        r"info\.json: data_path is \[0, 0, .*, expected a text",
    ),
    "episode listed twice": (
        lambda p: (p / "meta/episodes.jsonl").write_text(
            '{"episode_index": 0, "tasks": [], "length": 8}\n' * 2
        ),
        r"an episode_index is listed twice",
    ),
    "wrong total": (
        lambda p: edit_json(p / "meta/info.json", lambda i: i.update(total_frames=99)),
        r"total_frames is 99, the episode table has 16",
    ),
    "zero-length episode": (
        lambda p: (p / "meta/episodes.jsonl").write_text('{"episode_index": 0, "tasks": [], "length": 0}\n'),
        r"episodes\.jsonl: 'length' is 0, expected a whole number >= 1",
    ),
    "episode line is a list": (
        lambda p: (p / "meta/episodes.jsonl").write_text("[1, 2]\n"),
        r"episodes\.jsonl:1: expected a JSON object, got list",
    ),
}


@pytest.mark.parametrize("case", BAD_V21)
def test_bad_input_has_one_message_with_the_file(v21: Path, case: str) -> None:
    spoil, message = BAD_V21[case]
    spoil(v21)
    with pytest.raises(ValueError, match=message):
        LerobotDataset(v21)[0]


def test_bad_v30_tables_are_refused(v30: Path) -> None:
    path = v30 / "meta/episodes/chunk-000/file-000.parquet"
    good = path.read_bytes()
    key = "videos/observation.images.cam_high/to_timestamp"
    edit_column(path, key, lambda rows: [row + 1 for row in rows])
    with pytest.raises(ValueError, match=r"lasts 1\.7.* s, expected 7 frames"):
        LerobotDataset(v30)
    path.write_bytes(good)
    edit_column(path, "dataset_from_index", lambda rows: [rows[0] + 1, rows[1] + 1])
    edit_column(path, "dataset_to_index", lambda rows: [rows[0] + 1, rows[1] + 1])
    with pytest.raises(ValueError, match="column 'index' of episode 0 does not count up from 1"):
        LerobotDataset(v30)[0]
    path.write_bytes(good[:1000])
    with pytest.raises(ValueError, match=r"file-000\.parquet: cannot be read as parquet"):
        LerobotDataset(v30)
    shutil.rmtree(v30 / "meta/episodes")
    with pytest.raises(ValueError, match="no episode table"):
        LerobotDataset(v30)


def test_texts_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    pq.write_table(pa.table({"task": pa.array([b"left", b"\xff\xfe"]).view(pa.string())}), path)
    with pytest.raises(ValueError, match=r"tasks\.parquet: cannot be read as parquet \(.*Invalid UTF8"):
        read_table(path)


@pytest.mark.parametrize(
    "template",
    [
        *("/etc/passwd", "../{episode_index}", "a/../../b", "", "{episode_index.__class__}", "a\\..\\b"),
        *("{unknown}", "{episode_index:999999d}", "C:/x", "a\0b", "x" * 256, "x/" * 1501),
    ],
)
def test_path_templates_stay_inside(template: str) -> None:
    with pytest.raises(ValueError, match=r"info\.json: path template"):
        fill_path(template, Path("info.json"), episode_index=3)


def test_path_template_is_filled() -> None:
    template = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    filled = fill_path(template, Path("info.json"), episode_chunk=1, video_key="a.b", episode_index=1234)
    assert filled == "videos/chunk-001/a.b/episode_001234.mp4"


def test_a_table_that_unpacks_to_gigabytes_is_refused_before_it_does(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    zeros = pa.array(np.zeros(1 << 22))
    schema = pa.schema([("a", pa.float64())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(8):
            writer.write_table(pa.table({"a": zeros}, schema=schema))
    assert path.stat().st_size < 200_000
    with pytest.raises(ValueError, match=r"bomb.parquet: the table claims \d+ bytes"):
        read_table(path)


def test_a_text_said_often_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    often = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["x" * 500])
    pq.write_table(pa.table({"task": often}), path)
    table = read_table(path)
    assert table.nbytes < 1_000_000
    assert table["task"][7].as_py() == "x" * 500


LONG = "0123456789" * 100_000
BOMBS = {
    "texts": lambda: pa.DictionaryArray.from_arrays(pa.array(np.zeros(5000, np.int32)), [LONG]),
    "plain texts": lambda: pa.array([LONG] * 300),
    "lists": lambda: pa.array([[LONG] * 5] * 60),
    "pictures": lambda: pa.array([{"bytes": LONG.encode(), "path": None}] * 300),
    "fixed": lambda: pa.array([LONG.encode()] * 300, pa.binary(len(LONG))),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_what_is_repeated_counts_as_often_as_it_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    column = BOMBS[kind]()
    pq.write_table(pa.table({"x": column}), path, compression="zstd", dictionary_pagesize_limit=1 << 22)
    assert path.stat().st_size < 60_000
    del column
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(ValueError, match=r"bomb.parquet: the table claims .* at most 67108864 are unpacked"):
        read_table(path)
    assert pa.default_memory_pool().bytes_allocated() - before < 64 << 20


def test_many_episodes_of_one_file_are_read_from_one_table(tmp_path: Path) -> None:
    """It is unpacked once, and read anew when it changes."""
    root = Path(shutil.copytree(DATA / "lerobot_v30", tmp_path / "set"))
    source = LerobotDataset(root)
    rows._whole_table.cache_clear()
    first = [source[index].robot_actions for index in range(len(source))]
    assert rows._whole_table.cache_info().misses <= len({row.data_file for row in source.meta.episodes})
    path = root / source.meta.episodes[0].data_file
    table = pq.read_table(path)
    moved = pa.array(
        [(np.array(row) * 0.5).tolist() for row in table["action"].to_pylist()], table["action"].type
    )
    pq.write_table(table.set_column(table.column_names.index("action"), "action", moved), path)
    np.testing.assert_allclose(LerobotDataset(root)[0].robot_actions, 0.5 * first[0], rtol=1e-6)


def test_a_folder_of_videos_by_its_other_name_and_cameras_that_a_set_lacks(v21: Path, tmp_path: Path) -> None:
    (v21 / "videos").rename(v21 / "video")
    assert LerobotDataset(v21)[0].num_frames == 7
    mapping = tmp_path / "two.yaml"
    mapping.write_text(
        "camera_keys: [observation.images.wrist, observation.images.cam_high]\ncameras: [hand, head]\n"
    )
    assert list(LerobotDataset(v21, mapping=mapping)[0].frames) == ["head"]
    mapping.write_text("camera_keys: [observation.images.wrist]\n")
    with pytest.raises(ValueError, match=r"the mapping names 'observation\.images\.wrist'"):
        LerobotDataset(v21, mapping=mapping)
