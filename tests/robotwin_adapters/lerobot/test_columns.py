"""Which columns are actions, states and cameras: openpi's names, split columns, mappings, modality.json."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from robotwin_adapters.lerobot.dataset import LerobotDataset
from robotwin_adapters.open_dataset import open_dataset
from worldmodel.cli import main
from worldmodel.data.video import open_video, write_video

DATA = Path(__file__).parents[1] / "data"
CONFIGS = Path(__file__).parents[3] / "configs/data"
ARX = Path(__file__).parents[3] / "../shared/data/robots/lerobot_v21_arx_x5_dual"


@pytest.fixture
def v21(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))


@pytest.fixture
def v30(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "lerobot_v30", tmp_path / "v30"))


def rename(root: Path, names: dict[str, str]) -> None:
    """Give columns and features other names, as other writers do."""
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] = {names.get(key, key): entry for key, entry in info["features"].items()}
    (root / "meta/info.json").write_text(json.dumps(info))
    for path in root.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.rename_columns([names.get(key, key) for key in table.column_names]), path)
    for old, new in names.items():
        for folder in root.glob(f"videos/*/{old}"):
            folder.rename(folder.with_name(new))


def split_action(root: Path, parts: dict[str, slice]) -> None:
    """Replace the column action by several."""
    info = json.loads((root / "meta/info.json").read_text())
    entry = info["features"].pop("action")
    for key, part in parts.items():
        width = len(range(4)[part])
        info["features"][key] = {**entry, "shape": [width], "names": ["j0", "j1", "j2", "grip"][part]}
    (root / "meta/info.json").write_text(json.dumps(info))
    for path in root.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        rows = np.array(table["action"].to_pylist(), np.float32)
        table = table.drop_columns(["action"])
        for key, part in parts.items():
            table = table.append_column(key, pa.array(rows[:, part].tolist(), pa.list_(pa.float32())))
        pq.write_table(table, path)


OPENPI = {
    "action": "actions",
    "observation.state": "state",
    "observation.images.cam_high": "image",
    "observation.images.cam_left_wrist": "wrist_image",
}


def test_names_of_openpi_are_taken_with_a_note(v21: Path) -> None:
    plain = LerobotDataset(v21)[0]
    rename(v21, OPENPI)
    episode = LerobotDataset(v21)[0]
    assert np.array_equal(episode.robot_actions, plain.robot_actions)
    assert np.array_equal(episode.robot_states, plain.robot_states)
    assert list(episode.frames) == ["image", "wrist_image"]
    assert "column 'actions' taken by its name" in episode.notes
    mapped = LerobotDataset(v21, mapping=CONFIGS / "lerobot_openpi.yaml")[0]
    assert np.array_equal(mapped.robot_actions, plain.robot_actions)
    assert list(mapped.frames) == ["base", "wrist"]


def test_split_columns_are_refused_by_name_and_joined_by_a_mapping(v21: Path) -> None:
    plain = LerobotDataset(v21)[0]
    split_action(v21, {"action.arm": slice(0, 3), "action.gripper": slice(3, 4)})
    with pytest.raises(ValueError, match=r"action_keys: \[action\.arm, action\.gripper\]"):
        LerobotDataset(v21)
    episode = open_dataset(v21, mapping=CONFIGS / "lerobot_split.yaml")[0]
    assert np.array_equal(episode.robot_actions, plain.robot_actions)
    assert episode.action_names == plain.action_names
    (v21 / "dataset.yaml").write_text("action_keys: [action.arm]\nembodiment: arm\naction_names: [a, b, c]\n")
    own = open_dataset(v21)[0]
    assert (own.action_names, own.embodiment) == (("a", "b", "c"), "arm")
    assert np.array_equal(own.robot_actions, plain.robot_actions[:, :3])


def test_a_mapping_that_names_no_column_says_which_there_are(v21: Path) -> None:
    (v21 / "dataset.yaml").write_text("action_keys: [actoin]\n")
    with pytest.raises(ValueError, match=r"names 'actoin', the data have .*action"):
        LerobotDataset(v21)
    (v21 / "dataset.yaml").write_text("camera_keys: [observation.images.top]\n")
    with pytest.raises(ValueError, match=r"names 'observation\.images\.top', the data have"):
        LerobotDataset(v21)


def test_templates_of_v30_in_v21(v21: Path) -> None:
    plain = LerobotDataset(v21)[1]
    info = json.loads((v21 / "meta/info.json").read_text())
    for key in ("data_path", "video_path"):
        info[key] = info[key].replace("{episode_chunk", "{chunk_index")
    (v21 / "meta/info.json").write_text(json.dumps(info))
    assert np.array_equal(LerobotDataset(v21)[1].robot_actions, plain.robot_actions)


@pytest.mark.parametrize("frames", [-1, 1])
def test_a_video_may_end_one_frame_off(v30: Path, frames: int) -> None:
    (path,) = (v30 / "meta/episodes").glob("*/*.parquet")
    table = pq.read_table(path)
    for name in [name for name in table.column_names if name.endswith("/to_timestamp")]:
        moved = pa.array([stop + frames / 10 for stop in table[name].to_pylist()])
        table = table.set_column(table.column_names.index(name), name, moved)
    pq.write_table(table, path)
    before, after = LerobotDataset(DATA / "lerobot_v30")[1], LerobotDataset(v30)[1]
    for camera, reader in after.frames.items():
        assert np.array_equal(reader.read([0, 8]), before.frames[camera].read([0, 8]))


def test_timestamps_that_begin_late_are_said(v21: Path) -> None:
    assert not any("timestamps begin" in note for note in LerobotDataset(v21)[0].notes)
    for path in v21.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        later = pa.array(np.array(table["timestamp"].to_pylist(), np.float32) + 0.5)
        pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", later), path)
    assert any("timestamps begin at 0.5 s" in note for note in LerobotDataset(v21)[0].notes)


def test_a_video_of_another_rate_is_said(v21: Path) -> None:
    """By time, as LeRobot would look them up, these frames would be others."""
    path = sorted(v21.rglob("*.mp4"))[0]
    frames = open_video(path).read(range(len(open_video(path))))
    rate = json.loads((v21 / "meta/info.json").read_text())["fps"]
    write_video(path, iter(frames), 3 * rate)
    episode = open_dataset(v21)[0]
    assert any(
        f"the video has {3 * rate:.4g} frames per second, info.json says {rate:.4g}" in n
        for n in episode.notes
    )
    assert not any("info.json says" in note for note in open_dataset(v21)[1].notes)
    assert episode.fps == rate


def test_one_more_frame_than_rows_is_cut_and_said(v21: Path) -> None:
    (video,) = v21.glob("videos/*/observation.images.cam_high/episode_000000.mp4")
    write_video(video, np.zeros((8, 48, 64, 3), np.uint8), 10)
    episode = LerobotDataset(v21)[0]
    assert len(episode.frames["cam_high"]) == episode.num_frames == 7
    assert "camera cam_high: 1 frame(s) more than rows, cut from the end" in episode.notes
    write_video(video, np.zeros((9, 48, 64, 3), np.uint8), 10)
    with pytest.raises(ValueError, match="9 frames, expected 7"):
        LerobotDataset(v21)[0]


def test_modality_names_replace_numbers() -> None:
    if not ARX.is_dir():
        pytest.skip("no shared robot data here")
    names = LerobotDataset(ARX)[0].action_names
    assert (names[0], names[6], names[13]) == ("left_arm_0", "left_gripper_0", "right_gripper_0")


def test_tables_in_a_row_and_slashes_in_names(v21: Path) -> None:
    """A row of the action may be a table, flattened row by row; keys may be parted by slashes."""
    plain = LerobotDataset(v21)[0]
    names = {"observation.state": "observation/state"}
    names["observation.images.cam_high"] = "observation/images/cam_high"
    info = json.loads((v21 / "meta/info.json").read_text())
    info["features"]["action"] |= {"shape": [2, 2], "names": None}
    info["features"] = {names.get(key, key): entry for key, entry in info["features"].items()}
    (v21 / "meta/info.json").write_text(json.dumps(info))
    for path in v21.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        rows = np.array(table["action"].to_pylist(), np.float32).reshape(-1, 2, 2)
        nested = pa.array(rows.tolist(), pa.list_(pa.list_(pa.float32())))
        table = table.set_column(table.column_names.index("action"), "action", nested)
        pq.write_table(table.rename_columns([names.get(key, key) for key in table.column_names]), path)
    for folder in v21.glob("videos/*/observation.images.cam_high"):
        shutil.move(folder, folder.parent / "observation/images/cam_high")
    episode = LerobotDataset(v21)[0]
    np.testing.assert_array_equal(episode.robot_actions, plain.robot_actions)
    np.testing.assert_array_equal(episode.robot_states, plain.robot_states)
    assert "cam_high" in episode.frames
    assert "column 'observation/state' taken by its name" in episode.notes


def test_truth_values_and_rows_of_unequal_length(v21: Path) -> None:
    info = json.loads((v21 / "meta/info.json").read_text())
    info["features"]["closed"] = {"dtype": "bool", "shape": [1], "names": ["closed"]}
    (v21 / "meta/info.json").write_text(json.dumps(info))
    for path in v21.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        truths = pa.array([number % 2 == 1 for number in range(table.num_rows)])
        pq.write_table(table.append_column("closed", truths), path)
    (v21 / "dataset.yaml").write_text("action_keys: [action, closed]\n")
    episode = LerobotDataset(v21)[0]
    assert episode.action_names[-1] == "closed"
    np.testing.assert_array_equal(episode.robot_actions[:3, -1], [0, 1, 0])
    for path in v21.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        rows = table["action"].to_pylist()
        uneven = pa.array([[row[:2], row[2:]] for row in rows[:-1]] + [[rows[-1][:1], rows[-1][1:]]])
        pq.write_table(table.set_column(table.column_names.index("action"), "action", uneven), path)
    with pytest.raises(ValueError, match="'action' should hold 4 numbers in every row"):
        _ = LerobotDataset(v21)[0]


def with_images(root: Path, key: str, entries: list[list[dict]], shape: list[int]) -> None:
    """A column of pictures in the tables, an entry for each row."""
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][key] = {"dtype": "image", "shape": shape, "names": None}
    (root / "meta/info.json").write_text(json.dumps(info))
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    for path, rows in zip(sorted(root.glob("data/*/*.parquet")), entries, strict=True):
        table = pq.read_table(path)
        pq.write_table(table.append_column(key, pa.array(rows[: table.num_rows], kind)), path)


def test_pictures_as_files_that_the_table_names(v21: Path, tmp_path: Path) -> None:
    picture = Image.fromarray(np.full((16, 24, 3), (200, 10, 90), np.uint8))
    picture.save(v21 / "frame.png")
    picture.save(tmp_path / "outside.png")
    count = len(list(v21.glob("data/*/*.parquet")))
    with_images(
        v21, "observation.images.disk", [[{"bytes": None, "path": "frame.png"}] * 99] * count, [16, 24, 3]
    )
    reader = open_dataset(v21)[0].frames["disk"]
    assert (reader.read([1])[0] == np.asarray(picture)).all()
    copied = tmp_path / "copied"
    assert main(["convert", str(v21), str(copied), "--to", "lerobot"]) == 0
    assert (open_dataset(copied)[0].frames["disk"].read([1])[0] == np.asarray(picture)).all()
    with_images(
        v21, "observation.images.far", [[{"bytes": None, "path": "../outside.png"}] * 99] * count, [16, 24, 3]
    )
    with pytest.raises(
        ValueError, match=r"observation\.images\.far.*bytes of an image in every row, or its path"
    ):
        open_dataset(v21)[0]


def test_depth_in_the_table_is_left_out_with_a_note(v21: Path, tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.fromarray(np.full((16, 24), 900, np.uint16)).save(data, "PNG")
    count = len(list(v21.glob("data/*/*.parquet")))
    entries = [[{"bytes": data.getvalue(), "path": "d.png"}] * 99] * count
    with_images(v21, "observation.images.depth", entries, [16, 24, 1])
    episode = open_dataset(v21)[0]
    assert "depth" not in episode.frames
    assert any("observation.images.depth left out: depth maps" in note for note in episode.notes)
    assert main(["convert", str(v21), str(tmp_path / "copied"), "--to", "lerobot"]) == 0
    columns = pq.read_schema(next((tmp_path / "copied").glob("data/*/*.parquet"))).names
    assert "observation.images.depth" not in columns  # as info.json says
    with_images(v21, "observation.images.range", entries, [16, 24, 1])
    with pytest.raises(ValueError, match=r"expected 8 bits a color: leave depth out by camera_keys"):
        open_dataset(v21)[0]
