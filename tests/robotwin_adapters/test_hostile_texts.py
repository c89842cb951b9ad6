"""Texts, rates and files of a dataset that are meant to confuse: shown or refused by name, never obeyed."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from robotwin_adapters.mapping import DataMapping
from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.tools.contact_sheet import contact_sheet, write_action_video
from robotwin_adapters.tools.inspect_dataset import format_summary, summarize
from tests.robotwin_adapters.lerobot.test_write import Episodes, smooth_episode
from worldmodel.config import load_config
from worldmodel.data.video import open_video

DATA = Path(__file__).parent / "data"
TEXT = "put it\ndown \x1b[31mred\x1b[0m <script>alert(1)</script>"


def test_a_line_break_in_a_text_does_not_stop_inspect(tmp_path: Path) -> None:
    plain = smooth_episode(0, 12, fps=10.0)
    episode = replace(plain, uid="a\nb", task=TEXT, instructions=(TEXT,), embodiment="bot\n\x1b[2J")
    assert contact_sheet([episode]).width > 0
    assert write_action_video(tmp_path / "actions.mp4", [episode]) == 12
    table = format_summary(summarize(Episodes((episode,)), range(1)))
    assert "\x1b" not in table
    assert "put it down ?[31mred?[0m" in table
    assert len(table.splitlines()) == len(
        format_summary(summarize(Episodes((plain,)), range(1))).splitlines()
    )


@pytest.mark.parametrize("fps", [0, -5, 1e300, "25", [25], True, 10**400, None])
def test_a_rate_that_cannot_be_is_refused_by_name(tmp_path: Path, fps: object) -> None:
    folder = tmp_path / "set"
    shutil.copytree(DATA / "lerobot_v30", folder)
    info = folder / "meta/info.json"
    values = json.loads(info.read_text())
    info.write_text(json.dumps({**values, "worldmodel": {"recorded_fps": fps}}))
    with pytest.raises(ValueError, match=r"info\.json: worldmodel: recorded_fps"):
        open_dataset(folder)
    info.write_text(json.dumps({**values, "fps": fps}))
    with pytest.raises(ValueError, match=r"info\.json: fps is"):
        open_dataset(folder)


@pytest.mark.parametrize("fps", ["-1", ".inf", ".nan", "1e300", "[25]", "1e-9", "fast"])
def test_a_rate_of_a_mapping_is_checked(tmp_path: Path, fps: str) -> None:
    (tmp_path / "dataset.yaml").write_text(f"fps: {fps}\n")
    with pytest.raises(ValueError, match=r"(?s)dataset\.yaml.*fps"):
        load_config(DataMapping, str(tmp_path / "dataset.yaml"))


def test_no_episode_has_an_impossible_rate() -> None:
    for fps in (0.0, float("inf"), float("nan"), 1e9):
        with pytest.raises(ValueError, match="fps is"):
            replace(smooth_episode(0, 12, fps=10.0), fps=fps)


@pytest.mark.parametrize(
    "name",
    [
        "meta/info.json",
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
    ],
)
def test_a_fifo_in_the_place_of_a_file_does_not_hang(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "set"
    shutil.copytree(DATA / "lerobot_v30", folder)
    assert (folder / name).exists()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=r"set"):
        open_dataset(folder)[0]


def test_a_fifo_in_the_place_of_a_video_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "head.mp4")
    with pytest.raises(ValueError, match=r"no video file at .*head\.mp4"):
        open_video(tmp_path / "head.mp4")
