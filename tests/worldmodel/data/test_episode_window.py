from dataclasses import replace

import numpy as np
import pytest
import torch

from worldmodel.data.clips import ClipConfig, clip_starts, cut_clip
from worldmodel.data.episode_window import EpisodeWindow
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.vae import encode_frames


class Counting:
    """A reader that notes which frames it is asked for."""

    def __init__(self, frames) -> None:
        self.frames, self.read_frames = frames, []

    @property
    def size(self) -> tuple[int, int]:
        return self.frames.size

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, indices) -> np.ndarray:
        self.read_frames += list(indices)
        return self.frames.read(indices)


@pytest.fixture
def episode():
    source = synthetic_source(num_episodes=1, num_frames=60, size=(16, 16), embodiments=("a",), action_dim=3)
    found = source[0]
    (name, frames), *_ = found.frames.items()
    return replace(found, frames={name: Counting(frames)})


@pytest.mark.parametrize(("stride", "step"), [(1, 1), (2, 3), (3, 4), (1, 16)])
def test_each_frame_is_decoded_once_and_clips_are_those_that_are_cut(episode, stride: int, step: int) -> None:
    config = ClipConfig(num_frames=9, stride=stride, step=step, height=16, width=16)
    starts = clip_starts(episode.num_frames, episode.fps, config)
    window, clips = EpisodeWindow(episode, starts, config), []
    for first in range(0, len(starts), 3):
        clips += window.clips(starts[first : first + 3])
    (reader,) = episode.frames.values()
    seen = list(reader.read_frames)
    assert seen == sorted(set(seen))
    for start, clip in zip(starts, clips, strict=True):
        assert torch.equal(clip, cut_clip(episode, start, config)[0])


@torch.no_grad()
def test_groups_encoded_once_are_the_latents_of_whole_clips(episode) -> None:
    config = ClipConfig(num_frames=9, stride=2, step=2, height=16, width=16)
    starts = clip_starts(episode.num_frames, episode.fps, config)
    torch.manual_seed(0)
    statistics = {"latents_mean": (0.1,) * 4, "latents_std": (2.0,) * 4}
    vae = CausalAutoencoder(height=16, width=16, z_dim=4, hidden=8, num_blocks=1, **statistics)
    for parameter in vae.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    encoded: list[int] = []

    def encode(frames: torch.Tensor) -> torch.Tensor:
        encoded.append(frames.shape[1] // 4)
        return encode_frames(vae, frames)

    window = EpisodeWindow(episode, starts, config)
    found = torch.cat([window.encode_groups(starts[at : at + 4], encode) for at in range(0, len(starts), 4)])
    whole = encode_frames(vae, torch.stack([cut_clip(episode, start, config)[0] for start in starts]))
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-5)
    assert sum(encoded) < 0.8 * whole.shape[0] * whole.shape[2]  # groups of overlapping clips are shared
