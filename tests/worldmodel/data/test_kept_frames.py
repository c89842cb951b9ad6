from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel.data.clips import ClipConfig, cut_clip
from worldmodel.data.kept_frames import KeptSource
from worldmodel.data.synthetic import synthetic_source
from worldmodel.types import EpisodeSource


@pytest.fixture
def source() -> EpisodeSource:
    return synthetic_source(num_episodes=2, num_frames=70, size=(24, 40))


@pytest.mark.parametrize("aspect", ["stretch", "crop"])
def test_clips_are_those_of_the_recording(source: EpisodeSource, aspect: str, tmp_path: Path) -> None:
    config = ClipConfig(num_frames=17, height=16, width=16, aspect=aspect, stride=2)
    kept = KeptSource(source, str(tmp_path), config)
    for number in range(len(source)):
        expected, actions = cut_clip(source[number], 3, config)
        frames, same = cut_clip(kept[number], 3, config)
        assert torch.equal(frames, expected)
        assert np.array_equal(actions, same)
    assert len(list(tmp_path.rglob("*.npy"))) == 2


def test_nothing_is_decoded_twice(source: EpisodeSource, tmp_path: Path) -> None:
    config = ClipConfig(num_frames=17, height=16, width=16)
    kept = KeptSource(source, str(tmp_path), config)
    assert not list(tmp_path.rglob("*"))  # opening decodes nothing
    cut_clip(kept[0], 0, config)
    (file,) = tmp_path.rglob("*.npy")
    time = file.stat().st_mtime_ns
    cut_clip(KeptSource(source, str(tmp_path), config)[0], 5, config)
    assert file.stat().st_mtime_ns == time
    assert not list(tmp_path.rglob("*.writing"))


def test_several_cameras_are_refused(source: EpisodeSource, tmp_path: Path) -> None:
    config = replace(ClipConfig(), camera=("left", "right"))
    with pytest.raises(ValueError, match="one camera"):
        KeptSource(source, str(tmp_path), config)[0]
