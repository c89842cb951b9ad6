import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

pytest.importorskip("mujoco")

from robotwin_adapters.tabletop.collect import collect_all
from robotwin_adapters.tabletop.record import RecordingConfig
from worldmodel.data.video import probe_video
from worldmodel.evaluation.submit import main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "heron"
    collect_all(folder, [RecordingConfig("place_a2b_left", "heron")], episodes=2, seed=0, workers=1)
    return folder


def test_worldarena_gets_its_archive_and_its_folders(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "submission"
    keys = [f"output={out}", "held_out.split=all", "name=tiny", "fps=24", "height=128", "width=160"]
    assert main(["desk", str(data), *keys, "organization=us"]) == 0
    videos = sorted((out / "tiny_test").iterdir())
    assert [video.name for video in videos] == [f"place_a2b_left_episode_{i}.mp4" for i in range(2)]
    table = probe_video(videos[0])
    assert table.size == (128, 160)
    assert table.fps == pytest.approx(24)
    assert len(table.pts) == round(17 * 24 / (25 / 3))
    summary = json.loads((out / "summary.json").read_text())
    assert all((out / entry["gt_path"]).is_file() and (out / entry["image"]).is_file() for entry in summary)
    with tarfile.open(out / "tiny.tar.gz") as archive:
        assert archive.getnames()[0] == "model_readme.md"
        assert archive.getnames()[1:] == [f"videos/{video.name}" for video in videos]
        card = archive.extractfile("model_readme.md")
        assert card is not None
        assert yaml.safe_load(card.read().decode().split("---")[1])["organization"] == "us"
    results = json.loads((out / "results.json").read_text())
    assert results["mean"]["psnr"] > 15
    assert results["mean"]["trajectory_accuracy"] > 1
    assert main(["desk", str(data), *keys]) == 2  # nothing is overwritten


def test_ewmbench_gets_three_generations_with_tracks(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "submission"
    keys = [f"output={out}", "held_out.split=all", "held_out.episodes=1", "format=ewmbench", "name=tiny"]
    assert main(["desk", str(data), *keys]) == 0
    episode = out / "tiny_dataset" / "place_a2b_left" / "episode_0"
    assert sorted(place.name for place in episode.iterdir()) == ["1", "2", "3"]
    for place in (*episode.iterdir(), out / "gt_dataset" / "place_a2b_left" / "episode_0"):
        assert len(list((place / "video").glob("frame_*.jpg"))) == 17
        assert Image.open(place / "video" / "frame_00000.jpg").size == (64, 64)
        assert np.load(place / "traj" / "traj.npy").shape == (17, 2, 2)
    assert (out / "gt_dataset/place_a2b_left/episode_0/prompt/prompt.txt").read_text() == "place a2b left\n"
