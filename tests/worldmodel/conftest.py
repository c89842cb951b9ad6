"""Tiny world models and synthetic batches for the tests of models, objectives and pipelines."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.tiny_wan import tiny_wan
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset, build_clip_dataset, collate_clips
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.idm import IdmConfig
from worldmodel.models.model import WorldModel
from worldmodel.types import ClipBatch

SIZE, NUM_FRAMES, FPS = 32, 13, 50 / 3
TINY_IDM = IdmConfig(
    image_height=SIZE,
    image_width=SIZE,
    patch_size=16,
    encoder_width=48,
    encoder_layers=1,
    encoder_heads=2,
    hidden=32,
)


@pytest.fixture(scope="session")
def clips() -> ClipDataset:
    source = synthetic_source(
        num_episodes=24, num_frames=26, size=(SIZE, SIZE), embodiments=("a", "b"), action_dim=6, fps=FPS
    )
    return build_clip_dataset([source], config=ClipConfig(num_frames=NUM_FRAMES, height=SIZE, width=SIZE))


@pytest.fixture
def batch(clips: ClipDataset) -> ClipBatch:
    return collate_clips([clips[i] for i in range(4)])


@pytest.fixture
def make_world_model(clips: ClipDataset) -> Callable[..., WorldModel]:
    """A tiny model of any config; its autoencoder is the PCA of the synthetic clips."""

    def make(**options: Any) -> WorldModel:
        config = WorldModelConfig(**{"backbone": tiny_wan(), "idm": TINY_IDM, **options})
        contract = InputSpec(NUM_FRAMES, SIZE, SIZE, FPS, camera="head", latent_scale=4)
        vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1)
        frames = torch.stack([clips[i].frames for i in range(4)]).float() / 127.5 - 1
        vae.initialize_from(frames.transpose(1, 2))
        vae.set_latent_statistics(frames.transpose(1, 2))
        return WorldModel.build(config, contract, clips.normalizer, vae=vae)

    return make


@pytest.fixture
def randomize() -> Callable[[torch.nn.Module], None]:
    """Gives every trained part weights that do something, as if it had been trained."""

    def apply(module: torch.nn.Module) -> None:
        generator = torch.Generator().manual_seed(7)
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)

    return apply
