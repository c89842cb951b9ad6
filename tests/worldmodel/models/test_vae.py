import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.vae import decode_latents, decode_next, freeze, open_decoder
from worldmodel.types import map_tensors

STATISTICS = {"latents_mean": [0.1] * 16, "latents_std": [2.0] * 16}


def wan(**options):
    torch.manual_seed(0)
    return freeze(AutoencoderKLWan(base_dim=8, z_dim=16, num_res_blocks=1, **STATISTICS, **options))


def wan_2_2():
    return wan(
        decoder_base_dim=8,
        is_residual=True,
        patch_size=2,
        in_channels=12,
        out_channels=12,
        scale_factor_spatial=16,
    )


def desk():
    torch.manual_seed(0)
    vae = CausalAutoencoder(height=16, width=16, z_dim=16, hidden=16, num_blocks=1)
    for parameter in vae.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return freeze(vae)


@pytest.mark.parametrize("make", [wan, wan_2_2, desk])
@pytest.mark.parametrize("num_given", [1, 2])
def test_decoding_frame_by_frame_is_decoding_the_whole(make, num_given):
    vae = make()
    latents = torch.randn(2, 16, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    whole = decode_latents(vae, latents)
    state = before = open_decoder(vae, latents[:, :, :num_given])
    made = []
    for number in range(num_given, 4):
        frames, state = decode_next(vae, state, latents[:, :, number : number + 1])
        made.append(frames)
    made = torch.cat(made, 1)
    assert torch.allclose(made, whole[:, 4 * num_given - 3 :], atol=1e-5)
    # An earlier state stays as it was, whatever has been decoded since.
    twice = map_tensors((before, latents), lambda x: x.repeat_interleave(2, 0))
    again, _ = decode_next(vae, twice[0], twice[1][:, :, num_given : num_given + 1])
    assert torch.allclose(again, made[:, :4].repeat_interleave(2, 0), atol=1e-5)
    assert (made[:, 0] - made[:, -1]).abs().max() > 1e-3
