"""Pictures and videos as loose files, and odd layouts of other formats, as a lab might keep them."""

import io
import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support import array_sets
from tests.support.array_sets import pictures, walk, write_rlds, write_zarr_array
from worldmodel.data.video import open_video, write_video


def png(picture: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()


def write_picture_folders(folder: Path, count: int = 2, frames: int = 9) -> Path:
    for number in range(count):
        place = folder / f"episode_{number:03d}"
        (place / "rgb").mkdir(parents=True)
        for step, picture in enumerate(pictures(frames, seed=number)):
            (place / "rgb" / f"{step}.png").write_bytes(png(picture))  # 10 comes after 9
        np.save(place / "actions.npy", walk(frames, 5, number))
        np.save(place / "states.npy", walk(frames, 4, number + 50))
    return folder


def write_frame_list(folder: Path, count: int = 2, frames: int = 9) -> Path:
    lines = []
    for number in range(count):
        for step, picture in enumerate(pictures(frames, seed=number)):
            path = folder / f"images/{number}/{step:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(picture))
            lines.append(
                {
                    "episode": number,
                    "image": path.relative_to(folder).as_posix(),
                    "action": walk(frames, 3, number)[step].tolist(),
                    "instruction": "push",
                    "fps": 5,
                }
            )
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return folder


def write_episode_list(folder: Path, count: int = 2, frames: int = 9, **more: object) -> Path:
    lines = []
    for number in range(count):
        path = folder / f"clips/take_{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(path, iter(pictures(frames, seed=number)), 8)
        actions = walk(frames - 1, 3, number).tolist()
        lines.append({"id": f"t{number}", "video": f"clips/take_{number}.mp4", "actions": actions, **more})
    (folder / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_folders_of_pictures(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(open_dataset(write_picture_folders(tmp_path / "set", frames=12))))
    assert (describe_format(source), len(source)) == ("folders of pictures", 2)
    episode = source[1]
    assert (episode.uid, tuple(episode.frames), episode.fps) == ("episode_001", ("rgb",), 10)
    np.testing.assert_array_equal(episode.robot_actions, walk(12, 5, 1)[:-1])
    np.testing.assert_array_equal(episode.robot_states, walk(12, 4, 51))
    np.testing.assert_array_equal(episode.frames["rgb"].read([11, 0, 10]), pictures(12, seed=1)[[11, 0, 10]])
    assert any("10 frames per second assumed" in note for note in episode.notes)


def test_a_list_of_frames(tmp_path: Path) -> None:
    source = open_dataset(write_frame_list(tmp_path / "set"))
    assert (describe_format(source), len(source)) == ("JSON lines with paths", 2)
    episode = source[1]
    assert (episode.uid, episode.fps, episode.instructions) == ("data/1", 5, ("push",))
    np.testing.assert_allclose(episode.robot_actions, walk(9, 3, 1)[:-1])
    np.testing.assert_array_equal(episode.frames["image"].read([3, 8]), pictures(9, seed=1)[[3, 8]])


def test_a_list_of_episodes(tmp_path: Path) -> None:
    folder = write_episode_list(tmp_path / "set", task="lift", fps=12)
    episode = open_dataset(folder)[1]
    assert (episode.uid, episode.fps, episode.task) == ("episodes/t1", 12, "lift")
    np.testing.assert_allclose(episode.robot_actions, walk(8, 3, 1))
    expected = open_video(folder / "clips/take_1.mp4").read([0, 8])
    np.testing.assert_array_equal(episode.frames["video"].read([0, 8]), expected)


def test_a_list_may_name_tables(tmp_path: Path) -> None:
    folder = write_episode_list(tmp_path / "set", count=1)
    row = json.loads((folder / "episodes.jsonl").read_text())
    actions = row.pop("actions")
    pq.write_table(pa.table({"actions": actions}), folder / "0.parquet")
    (folder / "episodes.jsonl").write_text(json.dumps({**row, "table": "0.parquet"}))
    np.testing.assert_allclose(open_dataset(folder)[0].robot_actions, actions)
    (folder / "episodes.jsonl").write_text(json.dumps({**row, "table": "../0.parquet"}))
    with pytest.raises(ValueError, match="expected a file below"):
        open_dataset(folder)[0]


@pytest.mark.parametrize("place", ["../outside.mp4", "clips/gone.mp4", 3])
def test_paths_stay_inside_the_dataset(tmp_path: Path, place: object) -> None:
    folder = write_episode_list(tmp_path / "set", count=1)
    (folder / "clips/take_0.mp4").rename(tmp_path / "outside.mp4")
    row = json.loads((folder / "episodes.jsonl").read_text())
    first = {**row, "video": "clips/take_0.mp4"}
    (folder / "episodes.jsonl").write_text(json.dumps(first) + "\n" + json.dumps({**row, "video": place}))
    with pytest.raises(ValueError, match=r"episodes\.jsonl, episode t0.*expected a file below"):
        open_dataset(folder)[1]


def test_broken_lines_and_rows_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_frame_list(tmp_path / "set", count=1)
    text = (folder / "data.jsonl").read_text()
    (folder / "data.jsonl").write_text(text + "{broken")
    with pytest.raises(ValueError, match=r"data\.jsonl: line 11 is not JSON"):
        open_dataset(folder)
    short = write_picture_folders(tmp_path / "short", count=1)
    np.save(short / "episode_000/actions.npy", walk(5, 5))
    with pytest.raises(ValueError, match="5 actions for 9 frames"):
        open_dataset(short)[0]


def test_soft_links_of_hdf5_are_followed_inside_the_file_alone(tmp_path: Path) -> None:
    """ALOHA's names may be links: the state behind one must not be lost without a word."""
    array_sets.write_aloha(tmp_path / "other", count=1)
    (tmp_path / "set").mkdir()
    with h5py.File(tmp_path / "set/episode_0.hdf5", "w") as file:
        file["raw/qpos"], file["raw/top"], file["action"] = walk(9, 14, 3), pictures(9), walk(9, 14)
        file["observations/qpos"] = h5py.SoftLink("/raw/qpos")
        file["observations/images/cam_high"] = h5py.SoftLink("/raw/top")
        file["observations/images/loop"] = h5py.SoftLink("/observations")
        file["observations/images/gone"] = h5py.SoftLink("/nowhere")
        foreign = str(tmp_path / "other/episode_0.hdf5")
        file["observations/images/far"] = h5py.ExternalLink(foreign, "/observations/images/cam_high")
        file["observations/images/hop"] = h5py.SoftLink("/observations/images/far")
    episode = open_dataset(tmp_path / "set")[0]
    assert tuple(episode.frames) == ("cam_high",)
    np.testing.assert_array_equal(episode.robot_states, walk(9, 14, 3))
    np.testing.assert_array_equal(episode.frames["cam_high"].read([4]), pictures(9)[[4]])


def test_episodes_at_the_top_of_one_hdf5_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "dataset.h5", "w") as file:
        for number in (0, 2, 10):
            group = file.create_group(f"episode_{number}")
            group["action"], group["obs/rgb"] = walk(9, 7, number), pictures(9)
            group["obs/joint_positions"] = walk(9, 6, number + 1)
    source = open_dataset(tmp_path)
    assert [source[index].uid for index in range(3)] == [f"dataset/episode_{n}" for n in (0, 2, 10)]
    episode = source[2]
    np.testing.assert_array_equal(episode.robot_actions, walk(9, 7, 10)[:-1])
    assert episode.robot_states.shape == (9, 6)
    assert episode.action_names[0] == "action_0"  # not robosuite's deltas


def test_an_action_of_unknown_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = array_sets._rlds_features

    def nested(seed: int, frames: int) -> dict[str, bytes]:
        found = features(seed, frames)
        found["steps/action/arm/joints"] = array_sets._floats(walk(frames, 6, seed))
        found["steps/action/gripper"] = array_sets._floats(walk(frames, 1, seed))
        found["steps/action/terminate_episode"] = array_sets._floats(np.ones((frames, 3)))
        return {key: value for key, value in found.items() if key != "steps/action"}

    monkeypatch.setattr(array_sets, "_rlds_features", nested)
    episode = open_dataset(write_rlds(tmp_path / "set", name="kitchen"))[0]
    expected = np.concatenate([walk(9, 6), walk(9, 1)], axis=1).astype(np.float32)[:-1]
    np.testing.assert_array_equal(episode.robot_actions, expected)
    assert any("action/arm/joints, action/gripper side by side" in note for note in episode.notes)


@pytest.mark.parametrize("rate", [10, 30])
def test_videos_beside_a_replay_buffer(tmp_path: Path, rate: int) -> None:
    """Diffusion Policy's real recordings: numbers at 10 a second, cameras at a rate of their own."""
    buffer, lengths = tmp_path / "replay_buffer.zarr", (9, 7)
    write_zarr_array(buffer / "data/action", walk(16, 6).astype(np.float32), (16, 6))
    write_zarr_array(buffer / "data/timestamp", 1e9 + np.arange(16) / 10, (16,))
    write_zarr_array(buffer / "meta/episode_ends", np.cumsum(lengths).astype(np.int64), (2,))
    for number, length in enumerate(lengths):
        path = tmp_path / f"videos/{number}/0.mp4"
        path.parent.mkdir(parents=True)
        write_video(path, iter(pictures(length * rate // 10, seed=number)), rate)
    episode = open_dataset(tmp_path)[1]
    assert (episode.num_frames, tuple(episode.frames)) == (7, ("0",))
    expected = open_video(tmp_path / "videos/1/0.mp4").read([2 * rate // 10, 6 * rate // 10])
    np.testing.assert_array_equal(episode.frames["0"].read([2, 6]), expected)
    write_video(tmp_path / "videos/1/0.mp4", iter(pictures(3)), rate)
    with pytest.raises(ValueError, match=r"videos/1/0\.mp4: 3 frames at"):
        open_dataset(tmp_path)[1]


def test_what_is_there_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "run.mcap").write_bytes(b"\x89MCAP0\r\n")
    (tmp_path / "shard-000.tar").write_bytes(bytes(1024))
    np.save(tmp_path / "episode_0.npy", np.array([{"action": 1}], dtype=object), allow_pickle=True)
    with h5py.File(tmp_path / "log.h5", "w") as file:
        file["sensors/eye"] = pictures(3)
    with pytest.raises(ValueError, match="no supported dataset") as refused:
        open_dataset(tmp_path)
    message = str(refused.value)
    assert "1 .mcap" in message
    assert "bags of ROS are not read" in message
    assert "archives of files are not read: unpack them first" in message
    assert "pickles, which we do not open" in message
    assert "log.h5 holds sensors: an episode a file, name its arrays in a mapping" in message
