"""Moving shapes with two arms' names, and tiny world models on them, for the tests of evaluation."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny_wan import tiny_wan
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset, build_clip_dataset
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.idm import IdmConfig
from worldmodel.models.model import WorldModel
from worldmodel.types import Episode

SIZE, NUM_FRAMES, FPS = 32, 13, 50 / 3
NAMES = ("left_x", "left_y", "right_x", "right_y")


class TwoArms:
    """Synthetic episodes whose disc is the left arm and whose square is the right one."""

    name = "two_arms"

    def __init__(self, num_episodes: int = 12, num_frames: int = 30, **options: Any) -> None:
        self.source = synthetic_source(
            num_episodes, num_frames, size=(SIZE, SIZE), action_dim=4, fps=FPS, **options
        )

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Episode:
        return dataclasses.replace(self.source[index], action_names=NAMES)


@pytest.fixture(scope="session")
def source() -> TwoArms:
    return TwoArms()


@pytest.fixture(scope="session")
def contract() -> InputSpec:
    return InputSpec(NUM_FRAMES, SIZE, SIZE, FPS, camera="head", latent_scale=4)


@pytest.fixture(scope="session")
def training_clips() -> ClipDataset:
    config = ClipConfig(num_frames=NUM_FRAMES, height=SIZE, width=SIZE)
    return build_clip_dataset([TwoArms(8, seed=5)], config=config, splits=SplitConfig(val=0.0, test=0.0))


@pytest.fixture(scope="session")
def make_model(contract: InputSpec, training_clips: ClipDataset) -> Callable[..., WorldModel]:
    """A tiny model that reacts to actions as an untrained network does: at random."""

    def make(**options: Any) -> WorldModel:
        idm = IdmConfig(
            image_height=SIZE,
            image_width=SIZE,
            encoder_width=24,
            encoder_layers=1,
            encoder_heads=2,
            hidden=16,
        )
        config = WorldModelConfig(**{"backbone": tiny_wan(), "idm": idm, "latent_action_dim": 4, **options})
        vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1)
        frames = torch.stack([training_clips[i].frames for i in range(4)]).float() / 127.5 - 1
        vae.initialize_from(frames.transpose(1, 2))
        vae.set_latent_statistics(frames.transpose(1, 2))
        model = WorldModel.build(config, contract, training_clips.normalizer, vae=vae)
        generator = torch.Generator().manual_seed(7)
        for part in model.parts().values():
            for parameter in part.parameters():
                parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
        return model.eval()

    return make


@pytest.fixture(scope="session")
def model_folder(make_model: Callable[..., WorldModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "acg"
    make_model(regime="acg").save_pretrained(folder)
    return folder
