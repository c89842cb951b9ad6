"""Which latents are found again."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan

from worldmodel.data.clips import ClipConfig
from worldmodel.data.index import index_episodes
from worldmodel.data.index_types import EpisodeIndex
from worldmodel.data.latents import encoder_identity
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.training import model_data
from worldmodel.training.datasets import DataConfig, open_index
from worldmodel.training.model_data import cache_latents, shared_index

DECODING = ("decoder.", "post_quant_conv.", "synthesis.")


def desk() -> CausalAutoencoder:
    zeros, ones = (0.0,) * 4, (1.0,) * 4
    return CausalAutoencoder(32, 32, z_dim=4, hidden=8, latents_mean=zeros, latents_std=ones)


def wan() -> AutoencoderKLWan:
    return AutoencoderKLWan(base_dim=8, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[True])


@pytest.mark.parametrize("make", [desk, wan])
@torch.no_grad()
def test_weights_that_make_latents_are_in_the_name_of_an_autoencoder(make: Callable) -> None:
    """Weight by weight: what changes latents changes the name, and what only decodes does not."""
    torch.manual_seed(0)
    vae, video = make().eval(), torch.rand(1, 3, 5, 32, 32) * 2 - 1
    for parameter in vae.parameters():
        parameter.copy_(torch.randn_like(parameter))  # zeros would hide what lies before them
    name, latents = encoder_identity(vae, dict(vae.config)), vae.encode(video).latent_dist.mode()
    changing = []
    for key, tensor in vae.state_dict().items():
        kept = tensor.clone()
        tensor.add_(0.5)
        is_renamed = encoder_identity(vae, dict(vae.config)) != name
        assert is_renamed != key.startswith(DECODING), key
        if not torch.equal(vae.encode(video).latent_dist.mode(), latents):
            changing.append(key)
            assert is_renamed, key
        tensor.copy_(kept)
    assert len(changing) > 5


@torch.no_grad()
def test_latents_are_found_again_when_only_the_decoder_changes(tmp_path: Path) -> None:
    index = index_episodes([synthetic_source(2, 13, (32, 32))], ClipConfig(num_frames=9, height=32, width=32))
    config, vae = DataConfig(latents=str(tmp_path)), desk()
    first = cache_latents(config, index, vae)
    vae.decoder[0].weight.add_(0.1)
    second = cache_latents(config, index, vae)
    assert (first.built, second.built, second.paths) == (len(index.records), 0, first.paths)
    vae.encoder[0].weight.add_(0.1)
    third = cache_latents(config, index, vae)
    assert third.built == len(index.records)
    assert not set(third.paths.values()) & set(first.paths.values())


def test_one_process_reads_the_data_and_the_others_get_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = ClipConfig(num_frames=9, height=32, width=32)
    config, sent, opened = DataConfig(synthetic_episodes=3, clip=clip), [], []

    def read(rank: int) -> EpisodeIndex:
        opened.append(rank)
        return open_index(config)

    def ranks(rank: int, send: Callable[[list[Any]], None]) -> EpisodeIndex:
        state = SimpleNamespace(num_processes=2, is_main_process=rank == 0)
        monkeypatch.setattr(model_data, "PartialState", lambda: state)
        monkeypatch.setattr(model_data, "broadcast_object_list", send)
        monkeypatch.setattr(model_data, "open_index", lambda config: read(rank))
        return shared_index(config)

    first = ranks(0, lambda found: sent.extend(found))
    second = ranks(1, lambda found: found.__setitem__(0, sent[0]))
    assert opened == [0]
    assert first.records == second.records
    assert second.open(second.records[2]).uid == first.records[2].uid
    with pytest.raises(ValueError, match="no data here"):
        ranks(1, lambda found: found.__setitem__(0, "no data here"))
