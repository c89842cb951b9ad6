from pathlib import Path

import pytest
import torch

from worldmodel.config import load_config
from worldmodel.models.vae import encode_video, load_vae
from worldmodel.training.autoencoder import AutoencoderConfig, initial_video, train
from worldmodel.training.datasets import open_clips, open_index
from worldmodel.training.loop.checkpoints import CheckpointStore

ROOT = Path(__file__).parents[3]


def test_the_saved_autoencoder_rebuilds_frames_and_knows_its_latent_scale(tmp_path: Path) -> None:
    overrides = [f"output={tmp_path}", "fit.steps=8", "latent_scale=4", "fit.optim.lr=1e-3"]
    config = load_config(AutoencoderConfig, str(ROOT / "configs/debug/autoencoder.yaml"), overrides)
    assert train(config, resume=False)
    vae = load_vae(str(tmp_path / "vae"))
    index = open_index(config.data)
    held_out = open_clips(config.data, index, "val", index.normalizer(), None, with_frames=True)
    video = initial_video(held_out, 2)
    rebuilt = vae.decode(vae.encode(video).latent_dist.mode()).sample
    error = (rebuilt - video).square().mean()
    still = (video[:, :, :1] - video).square().mean()
    assert error < 0.5 * still
    latents = encode_video(vae, video.movedim(2, 1))
    assert latents.shape == (2, 16, 3, 8, 8)
    assert 0.2 < latents.std() < 5
    assert torch.isfinite(latents).all()


def test_a_folder_that_holds_a_run_is_refused_before_data_is_opened(tmp_path: Path) -> None:
    overrides = [f"output={tmp_path}", "data.synthetic_episodes=0", f"data.paths=[{tmp_path / 'nowhere'}]"]
    config = load_config(AutoencoderConfig, str(ROOT / "configs/debug/autoencoder.yaml"), overrides)
    CheckpointStore(tmp_path / "checkpoints", 1).prepare()
    CheckpointStore(tmp_path / "checkpoints", 1).save(1, {}, {})
    (tmp_path / "config.yaml").write_text("of the run\n")
    with pytest.raises(ValueError, match="already holds a run: pass --resume"):
        train(config, False)
    assert (tmp_path / "config.yaml").read_text() == "of the run\n"
