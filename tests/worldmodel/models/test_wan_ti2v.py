"""Wan2.2-TI2V-5B by its layout: 48 channels, 16x16 pixels a latent, the autoencoder of that generation."""

from pathlib import Path

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset, collate_clips
from worldmodel.data.synthetic import synthetic_source
from worldmodel.models.actions.adaln import AdalnConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.backbone import load_wan
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import load_vae
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions

SIZE, TINY = 64, {"num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 96, "num_layers": 2}
TEXT = {"text_dim": 32, "freq_dim": 32}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What `Wan-AI/Wan2.2-TI2V-5B-Diffusers` looks like, with tiny weights."""
    torch.manual_seed(0)
    WanTransformer3DModel(in_channels=48, out_channels=48, **TINY, **TEXT).save_pretrained(
        tmp_path / "transformer"
    )
    AutoencoderKLWan(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=48,
        num_res_blocks=1,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=16,
        latents_mean=[0.1] * 48,
        latents_std=[0.5] * 48,
    ).save_pretrained(tmp_path / "vae")
    return tmp_path


def test_a_model_of_that_layout_trains_saves_and_streams(folder: Path, tmp_path: Path) -> None:
    source = synthetic_source(num_episodes=2, num_frames=14, size=(SIZE, SIZE), action_dim=6, fps=10.0)
    clips = build_clip_dataset([source], config=ClipConfig(num_frames=9, height=SIZE, width=SIZE))
    batch = collate_clips([clips[0], clips[1]])
    config = WorldModelConfig(
        pretrained=str(folder),
        vae=str(folder),
        causal=True,
        actions=ActionConfig(adaln=AdalnConfig(16)),
        objective=ObjectiveConfig(forcing="prefix", idm_weight=0.0),
    )
    contract = InputSpec(9, SIZE, SIZE, 10.0, latent_channels=48, latent_scale=16)
    model = WorldModel.build(config, contract, clips.normalizer)
    assert model.latents_of(batch).shape == (2, 48, 3, 4, 4)
    world_model_step(model, batch, torch.Generator().manual_seed(0)).total.backward()
    assert model.fdm.backbone.patch_embedding.weight.grad.abs().max() > 0
    model.save_pretrained(tmp_path / "model")
    videos = [
        RolloutPipeline(one).rollout(
            batch.frames[:, :1],
            Actions(batch.robot_actions),
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(0),
        )
        for one in (model, WorldModel.from_pretrained(tmp_path / "model", allow_external=True))
    ]
    assert videos[0].frames.shape == (2, 9, 3, SIZE, SIZE)
    assert torch.allclose(videos[0].frames, videos[1].frames, atol=1e-5)


def test_frames_must_fit_its_latents(folder: Path) -> None:
    vae = load_vae(str(folder))
    assert (vae.config["z_dim"], vae.config["scale_factor_spatial"]) == (48, 16)
    with pytest.raises(ValueError, match="multiples of 16"):
        InputSpec(9, 40, 64, 10.0, latent_channels=48, latent_scale=16)


@pytest.mark.parametrize(
    "options", [{"image_dim": 16, "added_kv_proj_dim": 48, "in_channels": 36}, {"in_channels": 36}]
)
def test_image_to_video_backbones_are_refused_in_words(tmp_path: Path, options: dict[str, int]) -> None:
    WanTransformer3DModel(out_channels=16, **options, **TINY, **TEXT).save_pretrained(
        tmp_path / "transformer"
    )
    with pytest.raises(ValueError, match=r"image-to-video backbones, .* are not supported \(image_dim="):
        load_wan(str(tmp_path))
