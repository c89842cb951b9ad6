"""A trained debug autoencoder with its latents, and a world model trained on them."""

from pathlib import Path

import pytest

from tests.support.debug_run import CONFIG, ROOT, SHARED
from worldmodel.config import load_config
from worldmodel.training.autoencoder import AutoencoderConfig
from worldmodel.training.autoencoder import train as train_autoencoder
from worldmodel.training.encode_latents import main as encode_latents
from worldmodel.training.world_model import TrainConfig, train


@pytest.fixture(scope="session")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny autoencoder and its latents, and what points a run at them."""
    folder = tmp_path_factory.mktemp("world_model")
    path = str(ROOT / "configs/debug/autoencoder.yaml")
    assert train_autoencoder(load_config(AutoencoderConfig, path, [f"output={folder}"]), resume=False)
    found = [f"model.vae={folder / 'vae'}", f"data.latents={folder / 'latents'}", "fit.trackers=[]"]
    assert encode_latents([CONFIG, *found]) == 0
    return found


@pytest.fixture(scope="session")
def one_process(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    assert train(load_config(TrainConfig, CONFIG, [*overrides, *SHARED, f"output={folder}"]), False)
    return folder
