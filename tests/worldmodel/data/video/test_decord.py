import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.video_sets import encode, moving_frames
from worldmodel.data.video import open_video
from worldmodel.data.video.decord_frames import VARIABLE, choose_decoder
from worldmodel.training.datasets import DataConfig, open_index

pytest.importorskip("decord")


@pytest.fixture(autouse=True)
def chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "auto")


def test_decord_gives_the_pixels_of_pyav(tmp_path: Path) -> None:
    encode(tmp_path / "a.mp4", moving_frames(30, 48, 64), "libx264", "yuv420p")
    video = open_video(tmp_path / "a.mp4")
    wanted = [3, 7, 11, 29, 7]
    by_pyav = video.read(wanted)
    choose_decoder("decord")
    assert np.array_equal(video.read(wanted), by_pyav)
    encode(
        tmp_path / "a.mp4", moving_frames(20, 48, 64), "libx264", "yuv420p"
    )  # another file in its place is opened again
    assert len(open_video(tmp_path / "a.mp4").read(range(20))) == 20


def test_what_decord_cannot_open_names_the_file_and_the_setting(tmp_path: Path) -> None:
    encode(tmp_path / "a.mp4", moving_frames(30, 48, 64), "libsvtav1", "yuv420p")
    video = open_video(tmp_path / "a.mp4")
    by_pyav = video.read([0, 5])
    choose_decoder("decord")
    with pytest.raises(ValueError, match=r"a\.mp4: decord cannot read it .*: set data\.decoder=pyav"):
        video.read([0, 5])
    choose_decoder("auto")
    assert np.array_equal(video.read([0, 5]), by_pyav)


def test_the_setting_reaches_loader_processes() -> None:
    open_index(DataConfig(synthetic_episodes=2, decoder="decord"))
    assert os.environ[VARIABLE] == "decord"
