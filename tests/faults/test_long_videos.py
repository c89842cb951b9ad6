"""Videos of 10,000 frames: what a process holds does not grow with the length of a video that is streamed."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.tiny_wan import tiny_wan
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline

pytestmark = pytest.mark.faults
FRAMES, SIZE, GROWTH_MB = 10_001, 32, 8.0  # allocators round
EARLY = 1000  # frames after which caches are warm


def build(causal: bool) -> RolloutPipeline:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    source = synthetic_source(
        num_episodes=2, num_frames=18, size=(SIZE, SIZE), embodiments=("a",), action_dim=4
    )
    clips = build_clip_dataset([source], config=ClipConfig(num_frames=9, height=SIZE, width=SIZE))
    vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=8, num_blocks=1, scale_factor_spatial=8)
    config = WorldModelConfig(regime="acg", backbone=tiny_wan(), causal=causal)
    contract = InputSpec(9, SIZE, SIZE, source[0].fps)
    return RolloutPipeline(WorldModel.build(config, contract, clips.normalizer, vae=vae).eval())


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def session_frames(pipeline: RolloutPipeline) -> Iterator[int]:
    """Frames so far, of a session that is stepped."""
    session = pipeline.open(torch.rand(1, 1, 3, SIZE, SIZE), embodiment="a")
    actions = torch.zeros(1, 4, 4)
    while session.num_frames < FRAMES:
        frames = session.step(actions)
        assert frames.shape == (1, 4, 3, SIZE, SIZE)
        yield session.num_frames


@pytest.mark.parametrize("causal", [False, True])
def test_a_streamed_video_of_ten_thousand_frames_takes_no_more_memory(causal: bool) -> None:
    early = count = 0.0
    for count in session_frames(build(causal)):
        if not early and count >= EARLY:
            early = resident_mb()
    grown = resident_mb() - early
    print(f"causal {causal}: {early:.1f} MB at {EARLY}, {grown:+.1f} MB at {count:.0f}")
    assert count >= FRAMES
    assert grown < GROWTH_MB


def test_a_whole_video_takes_its_own_size_and_no_more() -> None:
    pipeline = build(causal=False)
    pipeline(torch.rand(1, 1, 3, SIZE, SIZE), torch.zeros(1, 200, 4), embodiment="a", num_inference_steps=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    actions = torch.zeros(1, FRAMES - 1, 4)
    result = pipeline(torch.rand(1, 1, 3, SIZE, SIZE), actions, embodiment="a", num_inference_steps=1)
    own = result.frames.numel() * result.frames.element_size() / 1e6
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before
    print(f"a video of {own:.1f} MB: the peak grew by {grown:.1f} MB")
    assert result.frames.shape[1] == FRAMES
    assert grown < own + GROWTH_MB
