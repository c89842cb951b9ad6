"""Conversion between formats, and the commands `inspect` and `convert` as a person runs them."""

import json
import multiprocessing
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robotwin_adapters.open_dataset import describe_format, open_dataset
from robotwin_adapters.tools.convert import ChosenEpisodes, convert_dataset
from tests.robotwin_adapters.lerobot.test_write import Episodes, smooth_episode
from tests.robotwin_adapters.test_open_dataset import write_robotwin
from worldmodel.cli import main

DATA = Path(__file__).parents[1] / "data"


def test_robotwin_to_lerobot_and_back_keeps_every_number(tmp_path: Path) -> None:
    write_robotwin(tmp_path / "a", count=3)
    first = open_dataset(tmp_path / "a")
    convert_dataset(first, tmp_path / "b", "lerobot")
    second = open_dataset(tmp_path / "b")
    convert_dataset(second, tmp_path / "c", "robotwin")
    third = open_dataset(tmp_path / "c")
    assert [describe_format(source) for source in (first, second, third)] == [
        "RoboTwin",
        "LeRobot v3.0",
        "RoboTwin",
    ]
    for index in range(3):
        a, b, c = (source[index] for source in (first, second, third))
        for other in (b, c):
            assert np.array_equal(other.robot_actions, a.robot_actions)
            assert np.array_equal(other.robot_states[:1], a.robot_states[:1])
            assert (other.fps, other.embodiment) == (a.fps, a.embodiment)
            assert other.action_names == a.action_names
            assert other.action_space == a.action_space == "joint_commands"
        pictures = [episode.frames["head_camera"].read([0, 4]).astype(int) for episode in (a, b, c)]
        assert np.abs(pictures[2] - pictures[0]).mean() < 4


def test_what_is_no_two_arm_robot_cannot_become_robotwin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"episode0\.hdf5: cannot become a RoboTwin episode"):
        convert_dataset(Episodes((replace(smooth_episode(0, 6)),)), tmp_path / "out", "robotwin")
    assert not list(tmp_path.iterdir())
    posed = replace(smooth_episode(0, 6), action_space="measured_poses")
    with pytest.raises(ValueError, match="expected joint commands, got measured_poses"):
        convert_dataset(Episodes((posed,)), tmp_path / "out", "robotwin")
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        convert_dataset(Episodes((smooth_episode(0, 6),)), tmp_path / "there", "robotwin")


def test_inspect_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["inspect", str(DATA / "lerobot_v30"), "--out", str(tmp_path / "out"), "--episodes", "1"]) == 0
    )
    printed = capsys.readouterr().out
    for piece in ("LeRobot v3.0", "1 of 2", "cam_high 64x48", "testbot", "task 1", "grip"):
        assert piece in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"contact_sheet.png", "actions.mp4"}


def test_convert_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new"
    assert (
        main(["convert", str(DATA / "lerobot_v21"), str(out), "--to", "lerobot", "--camera", "cam_high"]) == 0
    )
    assert "wrote 2 episodes" in capsys.readouterr().out
    assert list(open_dataset(out)[1].frames) == ["cam_high"]


@pytest.mark.parametrize("arguments", [["--camera", "nose"], ["--episodes", "7"], []])
def test_bad_input_is_one_message_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    root = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))
    (root / "data/chunk-000/episode_000000.parquet").write_bytes(b"broken")
    assert main(["inspect", str(root), "--out", str(tmp_path / "out"), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("worldmodel inspect: ")
    assert "Traceback" not in captured.err
    assert not (tmp_path / "out").exists()


def test_skipping_bad_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))
    (root / "data/chunk-000/episode_000000.parquet").write_bytes(b"broken")
    assert main(["inspect", str(root), "--out", str(tmp_path / "out"), "--on-bad", "skip"]) == 0
    assert "skipped 1" in capsys.readouterr().out


def test_uids_and_deltas_survive_a_conversion_and_info_json_is_plain(tmp_path: Path) -> None:
    write_robotwin(tmp_path / "a", count=3)
    first = open_dataset(tmp_path / "a")
    convert_dataset(first, tmp_path / "b", "lerobot")
    second = open_dataset(tmp_path / "b")
    assert [second[i].uid for i in range(3)] == [first[i].uid for i in range(3)]
    assert second[0].delta_actions == first[0].delta_actions == ()
    assert "worldmodel" not in json.loads((tmp_path / "b/meta/info.json").read_text())


def test_some_episodes_are_converted_and_broken_ones_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "set"))
    assert main(["convert", str(folder), str(tmp_path / "one"), "--to", "lerobot", "--episodes", "1"]) == 0
    assert [episode.uid for episode in open_dataset(tmp_path / "one")] == ["episode_000001"]
    (folder / "data/chunk-000/episode_000000.parquet").unlink()
    arguments = ["convert", str(folder), str(tmp_path / "rest"), "--to", "lerobot", "--on-bad", "skip"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "skipped" in shown
    assert "wrote 1 episodes" in shown


def test_git_lfs_pointers_are_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for name in ("meta/info.json", "data/chunk-000/episode_000000.parquet"):
        folder = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / name.replace("/", "_")))
        (folder / name).write_text(pointer)
        with pytest.raises(ValueError, match="a Git LFS pointer, not the file itself; run git lfs pull"):
            open_dataset(folder)[0]
    folder = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "video"))
    next(folder.glob("videos/*/*/episode_000000.mp4")).write_text(pointer)
    with pytest.raises(ValueError, match=r"episode_000000\.mp4: a Git LFS pointer"):
        open_dataset(folder)[0]


@pytest.mark.parametrize("version", ["lerobot_v21", "lerobot_v30"])
def test_lerobot_to_lerobot_copies_videos_and_keeps_every_column(tmp_path: Path, version: str) -> None:
    folder = Path(shutil.copytree(DATA / version, tmp_path / "set"))
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["next.reward"] = {"dtype": "float32", "shape": [1], "names": None}
    (folder / "meta/info.json").write_text(json.dumps(info))
    for path in folder.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(
            table.append_column("next.reward", pa.array(np.arange(table.num_rows, dtype="f4"))), path
        )
    first = open_dataset(folder)
    assert convert_dataset(first, tmp_path / "all", "lerobot") == 2
    second = open_dataset(tmp_path / "all")
    for index in range(2):
        one, other = first[index], second[index]
        assert (one.uid, one.task, one.fps, one.notes) == (other.uid, other.task, other.fps, other.notes)
        assert np.array_equal(one.robot_actions, other.robot_actions)
        assert np.array_equal(one.robot_states, other.robot_states)
        for camera, reader in one.frames.items():
            assert np.array_equal(
                reader.read(range(len(reader))), other.frames[camera].read(range(len(reader)))
            )
    copied = {path.read_bytes() for path in (tmp_path / "all").rglob("*.mp4")}
    assert copied == {path.read_bytes() for path in folder.rglob("*.mp4")}
    tables = [pq.read_table(path) for path in sorted((tmp_path / "all/data").rglob("*.parquet"))]
    assert all("next.reward" in table.column_names for table in tables)
    assert (
        "stats/next.reward/mean"
        in pq.read_schema(next((tmp_path / "all/meta/episodes").rglob("*.parquet"))).names
    )
    assert convert_dataset(ChosenEpisodes(first, (1,)), tmp_path / "one", "lerobot") == 1
    assert open_dataset(tmp_path / "one")[0].uid == "episode_000001"


def test_keys_of_a_set_do_not_lead_out_of_the_copy(tmp_path: Path) -> None:
    shutil.copytree(DATA / "lerobot_v21", tmp_path / "set")
    path = tmp_path / "set/meta/info.json"
    info = json.loads(path.read_text())
    key = next(key for key, feature in info["features"].items() if feature["dtype"] == "video")
    info["features"]["observation.images.x/../../../../evil"] = info["features"].pop(key)
    info["video_path"] = info["video_path"].replace("{video_key}", key)  # the new key is in no path
    path.write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"evil.*not a path in the dataset"):
        convert_dataset(open_dataset(tmp_path / "set"), tmp_path / "a/b/out", "lerobot")
    assert not list(tmp_path.rglob("*evil*"))


def test_names_of_cameras_do_not_lead_out_of_a_new_set(tmp_path: Path) -> None:
    episode = smooth_episode(0, 6)
    evil = replace(episode, frames={"x/../../../../evil": next(iter(episode.frames.values()))})
    with pytest.raises(ValueError, match=r"evil.*not a path in the dataset"):
        convert_dataset(Episodes((evil,)), tmp_path / "a/b/out", "lerobot")
    assert not list(tmp_path.rglob("*evil*"))


def at_once(commands: list[list[str]]) -> list[int]:
    """Exit codes of commands that start together, each in a process of its own."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(commands))

    def run(command: list[str]) -> None:
        start.wait()
        sys.exit(main(command))

    processes = [context.Process(target=run, args=(command,)) for command in commands]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sorted(process.exitcode or 0 for process in processes)


@pytest.mark.parametrize("to", ["lerobot", "robotwin"])
def test_of_two_converts_into_one_folder_at_most_one_is_refused(to: str, tmp_path: Path) -> None:
    write_robotwin(tmp_path / "a", count=2)
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "alone"), "--to", to]) == 0
    codes = at_once([["convert", str(tmp_path / "a"), str(tmp_path / "out"), "--to", to]] * 2)
    assert codes == [0, 2]
    alone, both = (open_dataset(tmp_path / name) for name in ("alone", "out"))
    assert len(both) == len(alone) == 2
    for index in range(2):
        assert np.array_equal(both[index].robot_actions, alone[index].robot_actions)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "alone", "out"]


def test_two_inspections_into_one_folder_write_whole_pictures(tmp_path: Path) -> None:
    write_robotwin(tmp_path / "a", count=2)
    inspect = ["inspect", str(tmp_path / "a"), "--out"]
    assert main([*inspect, str(tmp_path / "alone")]) == 0
    assert at_once([[*inspect, str(tmp_path / "out")]] * 2) == [0, 0]
    alone, both = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("alone", "out")
    )
    assert both == alone
