"""Decoding one latent frame at a time: what a stream keeps of the latents it has decoded before."""

import copy

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    AutoencoderKLWan,
    WanCausalConv3d,
    unpatchify,
)
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.world_model.autoencoder import CausalAutoencoder
from worldmodel.models.world_model.wan import VideoAutoencoder, decode_latents, denormalize_latents


class FirstFrameDecoder:
    """For the desk autoencoder, whose frames depend on their own latent frame and on the first."""

    def __init__(self, vae: CausalAutoencoder, latents: Float[Tensor, "b c f h w"]) -> None:
        self.vae, self.first = vae, latents[:, :, :1]

    def decode(self, latents: Float[Tensor, "b c 1 h w"]) -> Float[Tensor, "b 4 3 H W"]:
        """The four frames of the next latent frame, in [0, 1]."""
        return decode_latents(self.vae, torch.cat([self.first, latents], 2))[:, 1:]

    def copies(self, count: int) -> "FirstFrameDecoder":
        """The same with every sample so many times."""
        return FirstFrameDecoder(self.vae, self.first.repeat_interleave(count, 0))


class CachedDecoder:
    """For Wan's autoencoder, whose causal convolutions look back at features: these are kept."""

    def __init__(self, vae: AutoencoderKLWan, latents: Float[Tensor, "b c f h w"]) -> None:
        self.vae, self.is_first = vae, True
        num_layers = sum(isinstance(module, WanCausalConv3d) for module in vae.decoder.modules())
        self.features: list[Tensor | str | None] = [None] * num_layers
        for frame in latents.split(1, 2):
            self.decode(frame)

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "b c 1 h w"]) -> Float[Tensor, "b n 3 H W"]:
        """The frames of the next latent frame, in [0, 1]."""
        hidden = self.vae.post_quant_conv(denormalize_latents(self.vae, latents))
        options = {"first_chunk": True} if self.is_first else {}
        video = self.vae.decoder(hidden, feat_cache=self.features, feat_idx=[0], **options).float()
        self.is_first = False
        if self.vae.config["patch_size"] is not None:
            video = unpatchify(video, patch_size=self.vae.config["patch_size"])
        return rearrange((video.clamp(-1, 1) + 1) / 2, "b c t H W -> b t c H W")

    def copies(self, count: int) -> "CachedDecoder":
        """The same with every sample so many times."""
        twin = copy.copy(self)
        twin.features = [x.repeat_interleave(count, 0) if isinstance(x, Tensor) else x for x in self.features]
        return twin


StreamDecoder = FirstFrameDecoder | CachedDecoder


def open_decoder(vae: VideoAutoencoder, latents: Float[Tensor, "b c f h w"]) -> StreamDecoder:
    """A decoder of what comes behind these latents."""
    if isinstance(vae, CausalAutoencoder):
        return FirstFrameDecoder(vae, latents)
    assert isinstance(vae, AutoencoderKLWan), type(vae)
    return CachedDecoder(vae, latents)
