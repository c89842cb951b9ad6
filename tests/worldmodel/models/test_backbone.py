import json
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

from tests.support.tiny_wan import tiny_wan
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.backbone import WanConfig, build_wan, empty_prompt_embedding, load_wan
from worldmodel.models.vae import decode_latents, encode_frames, load_vae


def tiny_wan_vae() -> AutoencoderKLWan:
    mean, std = [0.1 * i for i in range(16)], [1 + 0.1 * i for i in range(16)]
    return AutoencoderKLWan(base_dim=8, z_dim=16, num_res_blocks=1, latents_mean=mean, latents_std=std)


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    """What `Wan-AI/Wan2.1-T2V-1.3B-Diffusers` looks like, with tiny weights."""
    build_wan(tiny_wan()).save_pretrained(tmp_path / "transformer")
    torch.manual_seed(0)
    tiny_wan_vae().save_pretrained(tmp_path / "vae")
    index = {
        "_class_name": "WanPipeline",
        "_diffusers_version": "0.33.0.dev0",
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    return tmp_path


def test_default_shape_is_the_published_model():
    shape = WanConfig()
    with torch.device("meta"):
        backbone = WanTransformer3DModel(
            num_attention_heads=shape.num_heads,
            attention_head_dim=shape.head_dim,
            ffn_dim=shape.ffn_dim,
            num_layers=shape.num_layers,
            text_dim=shape.text_dim,
            freq_dim=shape.freq_dim,
            patch_size=shape.patch_size,
        )
    assert sum(p.numel() for p in backbone.parameters()) == 1_418_996_800


def test_hub_layout_loads_through_the_path_of_the_real_one(hub_folder):
    expected = build_wan(tiny_wan()).state_dict()
    for source in (hub_folder, hub_folder / "transformer"):
        loaded = load_wan(str(source)).state_dict()
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    assert isinstance(load_vae(str(hub_folder)), AutoencoderKLWan)
    assert isinstance(load_vae(str(hub_folder / "vae")), AutoencoderKLWan)


def test_bfloat16_keeps_the_modules_that_wan_keeps_in_fp32(hub_folder):
    loaded, built = load_wan(str(hub_folder), torch.bfloat16), build_wan(tiny_wan(), torch.bfloat16)
    dtypes = {name: p.dtype for name, p in loaded.named_parameters()}
    assert {name: p.dtype for name, p in built.named_parameters()} == dtypes
    assert dtypes["blocks.0.attn1.to_q.weight"] == torch.bfloat16
    assert dtypes["blocks.0.scale_shift_table"] == torch.float32


def test_wrong_folders_are_refused_by_name(tmp_path, hub_folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: expected transformer/config.json"):
        load_wan(str(tmp_path / "empty"))
    with pytest.raises(
        ValueError, match=r"AutoencoderKLWan or CausalAutoencoder, got 'WanTransformer3DModel'"
    ):
        load_vae(str(hub_folder / "transformer"))
    with pytest.raises(ValueError, match="patch_size"):
        WanConfig(patch_size=(2, 2, 2))


def test_random_backbone_is_a_function_of_its_seed():
    torch.manual_seed(5)
    first = build_wan(tiny_wan()).proj_out.weight
    before = torch.get_rng_state()
    assert torch.equal(first, build_wan(tiny_wan()).proj_out.weight)
    assert not torch.equal(first, build_wan(tiny_wan(seed=1)).proj_out.weight)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["wan", "desk"])
@torch.no_grad()
def test_latents_are_normalized_by_the_autoencoder_and_come_back(kind):
    torch.manual_seed(0)
    vae = tiny_wan_vae() if kind == "wan" else CausalAutoencoder(height=16, width=16, hidden=8)
    vae.eval()
    frames = torch.randint(0, 256, (2, 9, 3, 16, 16), dtype=torch.uint8)
    latents = encode_frames(vae, frames)
    raw = vae.encode(frames.movedim(1, 2) / 127.5 - 1).latent_dist.mode()
    mean, std = (torch.tensor(vae.config[key]).view(-1, 1, 1, 1) for key in ("latents_mean", "latents_std"))
    assert latents.shape == (2, 16, 3, *(2 * [16 // vae.config.scale_factor_spatial]))
    assert torch.allclose(latents, (raw - mean) / std, atol=1e-5)
    decoded = decode_latents(vae, latents)
    assert decoded.shape == frames.shape
    assert torch.allclose(decoded, vae.decode(raw).sample.movedim(1, 2) / 2 + 0.5, atol=1e-5)
    assert torch.allclose(encode_frames(vae, frames / 255), latents, atol=1e-5)


@torch.no_grad()
def test_empty_prompt_is_what_the_pipeline_would_encode():
    torch.manual_seed(0)
    config = UMT5Config(vocab_size=16, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    encoder = UMT5EncoderModel(config).eval()
    # The pipeline tokenizes to end-of-text and padding, masks the padding out and zeroes what it gave.
    ids, mask = torch.zeros(1, 512, dtype=torch.long), torch.zeros(1, 512, dtype=torch.long)
    ids[0, 0], mask[0, 0] = 1, 1
    expected = encoder(ids, mask).last_hidden_state
    expected[:, 1:] = 0
    got = empty_prompt_embedding(encoder)
    assert got.shape == (1, 512, 32)
    assert torch.allclose(got, expected, atol=1e-5)
