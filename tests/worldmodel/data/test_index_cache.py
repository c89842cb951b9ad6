"""The second start opens no episode, and sees every change."""

import os
import shutil
from pathlib import Path

import pytest

from robotwin_adapters.labeled import LabeledDataset
from robotwin_adapters.open_dataset import open_dataset
from worldmodel.data.clips import ClipConfig
from worldmodel.data.index import EpisodeIndex, index_episodes
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source

DATA = Path(__file__).parents[2] / "robotwin_adapters/data/lerobot_v21"
CLIP = ClipConfig(num_frames=5, height=16, width=16)
ALL_TRAIN = SplitConfig(val=0.0, test=0.0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The episodes that are opened from now on."""
    seen: list[int] = []
    original = LabeledDataset.__getitem__

    def counted(self, index):
        seen.append(index)
        return original(self, index)

    monkeypatch.setattr(LabeledDataset, "__getitem__", counted)
    return seen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORLDMODEL_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(DATA, tmp_path / "set"))


def indexed(folder: Path, clip: ClipConfig = CLIP, **options) -> EpisodeIndex:
    source = open_dataset(folder, verify=False, **options)
    return index_episodes([source], clip, ALL_TRAIN, verify="once")


def test_the_second_start_opens_nothing_and_knows_the_same(folder: Path, opened: list[int]) -> None:
    first = indexed(folder)
    assert opened
    opened.clear()
    second = indexed(folder)
    assert not opened
    for name in ("records", "stats", "too_short", "cameras", "uids", "config"):
        assert getattr(first, name) == getattr(second, name), name
    assert first.records[0].starts == second.records[0].starts
    assert second.open(second.records[1]).uid == "episode_000001"


@pytest.mark.parametrize("change", ["touched", "added", "clip", "camera", "mapping", "damaged"])
def test_every_change_is_seen(folder: Path, opened: list[int], change: str) -> None:
    indexed(folder)
    opened.clear()
    options, clip = {}, CLIP
    if change == "touched":
        os.utime(folder / "data/chunk-000/episode_000001.parquet", ns=(1, 1))
    elif change == "added":
        (folder / "meta/more.json").write_text("{}")
    elif change == "clip":
        clip = ClipConfig(num_frames=5, height=16, width=16, step=1)
    elif change == "camera":
        options["camera"] = "cam_left_wrist"
    elif change == "mapping":
        (folder / "dataset.yaml").write_text("embodiment: other\n")
    else:
        (kept,) = (folder.parent / "cache/index").glob("*.json")
        kept.write_text(kept.read_text()[:200])
    assert indexed(folder, clip, **options).records
    assert opened


def test_broken_videos_are_found_before_training_and_only_of_the_camera_in_use(folder: Path) -> None:
    (video,) = folder.glob("videos/*/observation.images.cam_high/episode_000001.mp4")
    content = bytearray(video.read_bytes())
    start = content.index(b"mdat") + 700
    content[start : start + 200] = bytes(200)
    video.write_bytes(content)
    with pytest.raises(ValueError, match=r"episode_000001\.mp4"):
        indexed(folder)
    source = open_dataset(folder, verify=False)
    left = index_episodes([source], CLIP, ALL_TRAIN, on_bad="skip", verify="once")
    assert [record.uid for record in left.records] == ["episode_000000"]
    assert "episode_000001.mp4" in left.skipped[0].reason
    assert next(iter(left.stats.values())).num_samples == 6  # the broken one leaves no trace
    assert not list((folder.parent / "cache").glob("index/*")), (
        "an index with unreadable episodes is not kept"
    )
    wrist = index_episodes([source], ClipConfig(5, camera="cam_left_wrist"), ALL_TRAIN, verify="once")
    assert len(wrist.records) == 2
    assert len(index_episodes([source], CLIP, ALL_TRAIN, verify="never").records) == 2


def test_sources_without_a_stamp_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDMODEL_CACHE", str(tmp_path))
    index_episodes([synthetic_source(2, size=(16, 16))], CLIP)
    assert not list(tmp_path.rglob("*.json"))
