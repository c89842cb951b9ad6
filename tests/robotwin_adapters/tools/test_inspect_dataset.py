"""`worldmodel inspect`: the table is right, pictures are written, bad episodes stop or are listed."""

import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.tools.convert import readable_episodes
from robotwin_adapters.tools.inspect_dataset import (
    config_line,
    format_summary,
    lag_lines,
    oddities,
    parse_positions,
    summarize,
    write_pictures,
)
from tests.robotwin_adapters.lerobot.test_write import Episodes, smooth_episode
from tests.support.array_sets import write_npz
from worldmodel.cli import main
from worldmodel.config import load_config
from worldmodel.data.clips import ClipConfig
from worldmodel.data.index import index_episodes
from worldmodel.data.synthetic import synthetic_source
from worldmodel.data.video import open_video
from worldmodel.training.world_model import TrainConfig

DATA = Path(__file__).parents[1] / "data"
OWN_ROBOT = Path(__file__).parents[3] / "configs/desk/own_robot.yaml"


@pytest.mark.parametrize(("text", "expected"), [("0", [0]), ("0,3", [0, 3]), ("2-4, 0", [2, 3, 4, 0])])
def test_positions(text: str, expected: list[int]) -> None:
    assert parse_positions(text, 5) == expected


@pytest.mark.parametrize("text", ["5", "3-1", "a", "", "-1", "0-9"])
def test_wrong_positions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="episodes"):
        parse_positions(text, 5)


def test_numbers_in_the_table() -> None:
    source = Episodes(tuple(smooth_episode(seed, 20 + 10 * seed, fps=10.0) for seed in range(3)))
    summary = summarize(source, range(3))
    actions = np.concatenate([episode.robot_actions for episode in source.episodes])
    assert (summary.num_frames, summary.seconds) == (90, pytest.approx(9))
    (ranges,) = summary.actions.values()
    assert np.array_equal(ranges.low, actions.min(axis=0))
    assert np.array_equal(ranges.high, actions.max(axis=0))
    assert np.allclose(ranges.total / ranges.count, actions.mean(axis=0))
    text = format_summary(summary)
    for piece in ("90 (20 to 40 an episode)", "head_camera 48x32", "bot, 3 dimensions", "0 min 9.0 s"):
        assert piece in text


@pytest.mark.parametrize(
    ("space", "stated"),
    [
        ("joint_commands", "joint_commands (joint targets that were commanded)"),
        ("", "the data do not state whether actions were commanded or measured"),
    ],
)
def test_the_table_says_what_the_actions_are(space: str, stated: str) -> None:
    episode = replace(smooth_episode(0, 20, fps=10.0), action_space=space)
    text = format_summary(summarize(Episodes((episode,)), range(1)))
    assert f"actions      bot, 3 dimensions: {stated}" in text


def test_pictures_of_a_dataset(tmp_path: Path) -> None:
    source = open_dataset(DATA / "lerobot_v30")
    summary = summarize(source, range(2))
    written = write_pictures(source, summary, tmp_path / "out")
    assert [path.name for path in written] == ["contact_sheet.png", "actions.mp4"]
    assert len(open_video(written[1])) == 16


def test_bad_episodes_stop_or_are_listed(tmp_path: Path) -> None:
    root = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))
    (root / "data/chunk-000/episode_000000.parquet").write_bytes(b"broken")
    source = open_dataset(root)
    with pytest.raises(ValueError, match=r"episode_000000\.parquet"):
        summarize(source, range(2))
    summary = summarize(source, range(2), on_bad="skip")
    assert (summary.good, len(summary.skipped)) == ([1], 1)
    text = format_summary(summary)
    assert "1 of 2" in text
    assert "skipped 1" in text
    (root / "data/chunk-000/episode_000001.parquet").write_bytes(b"broken")
    with pytest.raises(ValueError, match="none of its 2 episodes can be read"):
        summarize(source, range(2), on_bad="skip")


def test_black_pictures_and_angles_that_wrap_are_noted() -> None:
    episode = synthetic_source(1, 9, size=(16, 16), action_dim=2)[0]
    angles = np.array([[0.0, 3.1], [0.1, -3.12], [0.2, -3.0], *[[0.2, -3.0]] * 5])
    odd = replace(episode, robot_actions=angles, frames={"head": Black(), "side": episode.frames["head"]})
    notes = oddities(odd)
    assert any("camera head is black" in note for note in notes)
    assert not any("camera side" in note for note in notes)
    assert any("actions joint1 jump by 6.28" in note for note in notes)
    assert oddities(episode) == []


class Black:
    size = (16, 16)

    def __len__(self) -> int:
        return 9

    def read(self, indices):
        return np.zeros((len(indices), 16, 16, 3), np.uint8)


def suggested(source, count: int, mapping: str | None = None) -> dict:
    return yaml.safe_load(config_line(summarize(source, range(count)), "data/my set", mapping))


def test_the_last_line_is_yaml_for_a_training_config() -> None:
    said = suggested(synthetic_source(6, 100, size=(16, 16), fps=30.0), 6, "my.yaml")
    data = said.pop("data")
    assert not said
    assert (data["paths"], data["mapping"]) == (["data/my set"], "my.yaml")
    assert data["clip"] == {"camera": "head", "num_frames": 17, "stride": 4}
    splits = data["splits"]
    assert (splits["val"], splits["test"]) == (0, 0)
    assert (len(splits["val_uids"]), len(splits["test_uids"])) == (1, 2)
    assert not {*splits["val_uids"]} & {*splits["test_uids"]}


def test_the_line_holds_any_path() -> None:
    path = "data/\N{ROBOT FACE} \N{CJK UNIFIED IDEOGRAPH-4E2D} 'a\""
    line = config_line(summarize(synthetic_source(3, 100, size=(16, 16), fps=30.0), range(3)), path)
    override = line.replace(": ", "=", 1)[:-1] + ", synthetic_episodes: 0}"
    settings = load_config(TrainConfig, "debug/world_model", [override])
    assert settings.data.paths == (path,)


def test_the_line_fits_short_episodes_few_episodes_and_several_rates() -> None:
    # 17 frames before a wide stride: the shipped model was trained on clips of 17.
    clip = suggested(synthetic_source(3, 40, size=(16, 16), fps=30.0), 3)["data"]["clip"]
    assert clip == {"camera": "head", "num_frames": 17, "stride": 2, "step": 1}
    short = suggested(synthetic_source(1, 10, size=(16, 16), fps=5.0), 1)
    assert short["data"]["clip"] == {"camera": "head", "num_frames": 9, "stride": 1, "step": 1}
    assert short["data"]["splits"] == {"val": 0, "test": 0}
    assert set(short) == {"data"}  # two clips in all: they are repeated in a batch
    summary = summarize(synthetic_source(3, 40, size=(16, 16), fps=30.0), range(1))
    assert "splits" not in config_line(summary, "x")  # not all episodes were looked at
    many = summarize(synthetic_source(2, 40, size=(16, 16)), range(2))
    many.facts = [replace(many.facts[0], uid=f"e{number}", actions=str(number // 2)) for number in range(50)]
    many.num_listed = 50
    splits = yaml.safe_load(config_line(many, "x"))["data"]["splits"]
    assert {int(uid[1:]) ^ 1 for uid in splits["test_uids"]} == {int(uid[1:]) for uid in splits["test_uids"]}
    assert "25 episodes hold the actions of another one" in format_summary(many)
    summary.facts.append(replace(summary.facts[0], fps=10.0))
    line = config_line(summary, "x")
    assert "fps: 10" in line
    config = load_config(TrainConfig, str(OWN_ROBOT), [line.replace(": ", "=", 1)])
    assert (config.data.clip.fps, config.data.clip.stride) == (10, 1)  # the preset's stride gives way


def test_all_unreadable_says_why() -> None:
    class Broken:
        name = "broken"

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int):
            raise ValueError(f"{index}.mp4: no frames")

    with pytest.raises(ValueError, match=r"none of its 2 episodes can be read; the first: 0\.mp4: no frames"):
        summarize(Broken(), range(2), "skip")
    with pytest.raises(ValueError, match=r"none of 2 episodes can be read; the first: 0\.mp4"):
        readable_episodes(Broken(), range(2))


def test_the_lag_behind_commands_is_measured_with_its_line_of_yaml(
    tmp_path: Path, robotwin_files, capsys: pytest.CaptureFixture[str]
) -> None:
    """A steady motion of which 0.4 is missing at each recorded frame, 0.2 at every second one."""
    count = 41
    poses = np.tile(robotwin_files.draw_poses(1), (count, 1))
    poses[:, :3] += np.arange(count)[:, None] * (0.01, 0.005, -0.01)
    measured = poses.copy()
    measured[1:] += 0.4 * (poses[:-1] - poses[1:])
    path = tmp_path / "set" / "data" / "episode0.hdf5"
    robotwin_files.write_legacy(path, count=count, frames=np.zeros((count, 48, 64, 3), np.uint8))
    with h5py.File(path, "r+") as file:
        for side in ("left", "right"):
            file[f"endpose/{side}_endpose"][:] = measured
            file[f"commanded_endpose/{side}_endpose"] = poses
    assert main(["inspect", str(tmp_path / "set"), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("command lag")]
    assert "model: {actions: {pose_maps: {command_lag: 0.20}}}" in line
    assert "at 8.333 frames per second" in line


def test_joints_that_follow_their_commands_have_a_lag_too(tmp_path: Path) -> None:
    source = synthetic_source(2, 60, size=(16, 16), fps=8.0)
    commands = np.linspace(0, 1, 59)[:, None] ** 2 * np.ones(source[0].robot_actions.shape[1])
    states = np.concatenate([commands[:1], commands])
    states[2:] -= 0.25 * np.diff(commands, axis=0)
    names = source[0].action_names
    episode = replace(
        source[0], robot_actions=commands, robot_states=states, state_names=names, delta_actions=()
    )
    made = Episodes([episode])

    def one_space(space: str):
        raise ValueError(f"no {space} here")

    (line,) = lag_lines(summarize(made, range(1)), made, one_space)
    assert "model: {actions: {pose_maps: {command_lag: 0.25}}}" in line
    assert lag_lines(summarize(source, range(2)), source, one_space) == []


def test_half_a_download_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The suggested line leaves out what is missing, and divides what is there."""
    write_npz(tmp_path / "set", 5)
    (tmp_path / "set/2.npz").write_bytes(b"PK")
    arguments = ["inspect", str(tmp_path / "set"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "2.npz: " in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("To leave such episodes out: --on-bad skip")
    assert main([*arguments, "--on-bad", "skip"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("to train"))
    assert "on_bad: skip" in line
    assert "val_uids" in line
    source = open_dataset(tmp_path / "set")
    with pytest.raises(ValueError, match=r"2\.npz: .*To leave such episodes out: on_bad=skip"):
        index_episodes([source], ClipConfig(num_frames=9, height=16, width=16))
    (tmp_path / "set/0.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"0\.npz: ") as refused:  # as far as one knows, all are broken
        index_episodes([source], ClipConfig(num_frames=9, height=16, width=16))
    assert "leave such" not in str(refused.value)


def test_missing_videos_are_one_line_and_damaged_ones_come_after_the_first_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robotwin_adapters.tools.inspect_dataset.LOOKED_AT", 1)  # the first one
    root = Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))
    first, second = sorted(root.glob("videos/**/*.mp4"))
    whole = first.read_bytes()
    first.unlink()
    assert main(["inspect", str(root), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "episodes     1 of 2" in printed
    assert "no video 1   no video file at " in printed
    assert "episode_000000.mp4: left out, also in training" in printed
    first.write_bytes(whole)
    content = bytearray(second.read_bytes())
    content[200:-1200] = bytes(len(content) - 1400)  # the container stays readable
    second.write_bytes(content)
    assert main(["inspect", str(root), "--out", str(tmp_path / "out2"), "--on-bad", "skip"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("episodes     2") < printed.index("damaged      ") < printed.index("wrote")
    assert "on_bad: skip" in printed
