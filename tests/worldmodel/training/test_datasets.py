"""One contract for all episodes of a data set: what differs is refused, or made equal by a setting."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from worldmodel.data.clips import ClipConfig
from worldmodel.data.index import index_episodes
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.config import InputSpec
from worldmodel.training.datasets import DataConfig, open_index
from worldmodel.training.model_data import frame_contract
from worldmodel.types import Episode, EpisodeSource

CLIP = ClipConfig(num_frames=9, height=32, width=32)
ALL_TRAIN = SplitConfig(val=0.0, test=0.0)


@dataclass(frozen=True)
class LastChanged:
    """Episodes that are alike but for the last one."""

    source: EpisodeSource
    change: Callable[[Episode], Episode]
    name: str = "mixed"

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Episode:
        episode = self.source[index]
        return self.change(episode) if index == len(self) - 1 else episode


def shown_at(size: tuple[int, int]) -> Callable[[Episode], Episode]:
    def change(episode: Episode) -> Episode:
        return replace(episode, frames={"head": replace(episode.frames["head"], size=size)})  # type: ignore[type-var]

    return change


def wrist(episode: Episode) -> Episode:
    return replace(episode, frames={"wrist": episode.frames["head"]})


def both(episode: Episode) -> Episode:
    return replace(episode, frames={"forehead": episode.frames["head"], "head": episode.frames["head"]})


def slower(episode: Episode) -> Episode:
    return replace(episode, fps=5.0)


def contract(change: Callable[[Episode], Episode], **clip: Any) -> InputSpec:
    """Of four episodes in one source: only the last one differs."""
    source = LastChanged(synthetic_source(4, 40, (32, 32), fps=10.0), change)
    vae = CausalAutoencoder(height=32, width=32, hidden=8, num_blocks=1)
    return frame_contract(index_episodes([source], replace(CLIP, **clip), ALL_TRAIN), vae)


FILES = r"synthetic/episode\d.*synthetic/episode\d"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (slower, f"{FILES} of 10: one model has one rate. Set data.clip.fps .*5 or lower"),
        (both, f"{FILES} camera 'forehead': one model has one camera. Set data.clip.camera"),
        (wrist, f"{FILES} camera 'wrist': one model has one camera. Set data.clip.camera"),
        (shown_at((24, 32)), f"{FILES}.* look different in them. Set data.clip.aspect=crop"),
    ],
)
def test_episodes_that_differ_are_refused_with_two_files_and_the_setting(
    change: Callable[[Episode], Episode], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        contract(change)


def test_a_setting_that_makes_episodes_equal_is_honored() -> None:
    assert contract(slower, fps=5.0).fps == 5.0
    assert contract(shown_at((24, 32)), aspect="crop").aspect == "crop"
    assert contract(shown_at((64, 64))).aspect == "stretch"  # another size of the same shape is resized
    assert contract(lambda e: replace(e, fps=10.05)).fps == 10.05  # a rounded label
    assert contract(both, camera="head").camera == "head"


def test_aspect_and_merge_are_in_the_contract() -> None:
    found = contract(lambda episode: episode, aspect="crop", merge="sum", stride=2)
    assert (found.aspect, found.merge, found.fps) == ("crop", "sum", 5.0)
    assert found.clip_config(num_frames=17, step=3) == ClipConfig(
        17, fps=5.0, step=3, height=32, width=32, aspect="crop", camera="head", merge="sum"
    )


@pytest.mark.parametrize(
    ("clip", "change"),
    [
        ({"stride": 3}, "every 3 recorded.* has 18 recorded frames: .*or lower data.clip.stride"),
        ({"fps": 2.0}, "2 a second.* has 18 recorded frames: .*or raise data.clip.fps"),
    ],
)
def test_data_without_a_whole_clip_is_refused(clip: dict[str, Any], change: str) -> None:
    config = DataConfig(synthetic_episodes=3, clip=replace(CLIP, **clip))
    message = f"no episode is as long as a clip of 9 frames, {change}"
    with pytest.raises(ValueError, match=message):
        open_index(config)


def test_data_without_a_readable_episode_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/episode0.hdf5").write_bytes(b"no HDF5")
    with pytest.raises(ValueError, match=r"no episode to train on, 1 unreadable; .*episode0\.hdf5"):
        open_index(DataConfig(paths=(str(tmp_path),), on_bad="skip"))


def test_an_index_opens_without_the_libraries_of_models() -> None:
    """They take 200 MB, and whoever looks at a large dataset does not need them."""
    heavy = {"diffusers", "transformers", "peft"}
    code = f"import sys, worldmodel.training.datasets; print(*({heavy} & {{*sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
