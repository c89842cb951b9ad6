import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.vae import decode_latents, freeze, open_decoder

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
    decoder = open_decoder(vae, latents[:, :, :num_given])
    fork = decoder.copies(2)
    made = torch.cat([decoder.decode(latents[:, :, i : i + 1]) for i in range(num_given, 4)], 1)
    assert torch.allclose(made, whole[:, 4 * num_given - 3 :], atol=1e-5)
    # A fork has not heard of what came since.
    again = fork.decode(latents[:, :, num_given : num_given + 1].repeat_interleave(2, 0))
    assert torch.allclose(again, made[:, :4].repeat_interleave(2, 0), atol=1e-5)
    assert (made[:, 0] - made[:, -1]).abs().max() > 1e-3
