"""Video autoencoders: load, encode, decode whole clips, and decode one latent frame after the other."""

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    AutoencoderKLWan,
    WanCausalConv3d,
    unpatchify,
)
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.checked import read_json, shorten
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.hub import CONFIG, find_part, load_part
from worldmodel.types import to_unit_range

VideoAutoencoder = AutoencoderKLWan | CausalAutoencoder


def load_vae(source: str, dtype: torch.dtype = torch.float32) -> VideoAutoencoder:
    """Load a frozen autoencoder from a folder or hub id, of the class its config.json names."""
    folder = find_part(source, "vae")
    classes = {"AutoencoderKLWan": AutoencoderKLWan, "CausalAutoencoder": CausalAutoencoder}
    name = read_json(folder / CONFIG).get("_class_name")
    if not isinstance(name, str) or name not in classes:
        raise ValueError(
            f"{source}: expected an autoencoder of class {' or '.join(classes)}, got {shorten(name)}"
        )
    vae = load_part(classes[name], folder, dtype)
    if min(vae.config["latents_std"]) <= 0 or {
        len(vae.config[key]) for key in ("latents_mean", "latents_std")
    } != {vae.config["z_dim"]}:
        raise ValueError(f"{folder / CONFIG}: latents_mean and latents_std (> 0) need z_dim values each")
    return freeze(vae)


def freeze(vae: VideoAutoencoder) -> VideoAutoencoder:
    """Freeze the autoencoder, in evaluation mode."""
    return vae.requires_grad_(False).eval()


def encode_frames(
    vae: VideoAutoencoder, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]
) -> Float[Tensor, "b c f h w"]:
    """Normalized latents of frames that are uint8, or float in [0, 1]."""
    return encode_video(vae, 2 * to_unit_range(frames) - 1)


@torch.no_grad()
def encode_video(vae: VideoAutoencoder, video: Float[Tensor, "b t 3 H W"]) -> Float[Tensor, "b c f h w"]:
    """Latents of frames in [-1, 1], normalized by the autoencoder's own statistics."""
    channels_first = rearrange(video, "b t c H W -> b c t H W").to(vae.dtype)
    latents = vae.encode(channels_first).latent_dist.mode().float()
    mean, std = _latent_statistics(vae, latents)
    return (latents - mean) / std


@torch.no_grad()
def decode_latents(vae: VideoAutoencoder, latents: Float[Tensor, "b c f h w"]) -> Float[Tensor, "b t 3 H W"]:
    """Frames in [0, 1]; inverse of `encode_frames` up to the reconstruction error."""
    video = decode_video(vae, latents)
    return rearrange((video + 1) / 2, "b c t H W -> b t c H W").clamp(0, 1)


def decode_video(vae: VideoAutoencoder, latents: Float[Tensor, "b c f h w"]) -> Float[Tensor, "b 3 t H W"]:
    """Frames in [-1, 1], differentiable in the latents."""
    video: Tensor = vae.decode(denormalize_latents(vae, latents)).sample.float()
    return video


def denormalize_latents(
    vae: VideoAutoencoder, latents: Float[Tensor, "b c f h w"]
) -> Float[Tensor, "b c f h w"]:
    """Normalized latents in the autoencoder's own scale and type."""
    mean, std = _latent_statistics(vae, latents.float())
    return (latents.float() * std + mean).to(vae.dtype)


def _latent_statistics(
    vae: VideoAutoencoder, like: Float[Tensor, "b c f h w"]
) -> tuple[Float[Tensor, "c 1 1 1"], Float[Tensor, "c 1 1 1"]]:
    mean, std = (
        like.new_tensor(vae.config[name]).view(-1, 1, 1, 1) for name in ("latents_mean", "latents_std")
    )
    return mean, std


# State of a decoder from the latents before: for our own the first latent frame, for Wan the features cached
# by its causal convolutions.
DecoderState = tuple[Tensor | str | None, ...]


def open_decoder(vae: VideoAutoencoder, latents: Float[Tensor, "b c f h w"]) -> DecoderState:
    """The decoder state after these latents, for `decode_next`."""
    if isinstance(vae, CausalAutoencoder):
        return (latents[:, :, :1],)
    num_layers = sum(isinstance(module, WanCausalConv3d) for module in vae.decoder.modules())
    state: DecoderState = (None,) * num_layers
    for frame in latents.split(1, 2):
        _, state = decode_next(vae, state, frame)
    return state


@torch.no_grad()
def decode_next(
    vae: VideoAutoencoder, state: DecoderState, latents: Float[Tensor, "b c 1 h w"]
) -> tuple[Float[Tensor, "b n 3 H W"], DecoderState]:
    """Decode the next latent frame to [0, 1]; also returns the new decoder state."""
    if isinstance(vae, CausalAutoencoder):
        (first,) = state
        assert isinstance(first, Tensor), "the first latent frame"
        return decode_latents(vae, torch.cat([first, latents], 2))[:, 1:], state
    hidden = vae.post_quant_conv(denormalize_latents(vae, latents))
    features, options = list(state), {"first_chunk": True} if state[0] is None else {}
    video = vae.decoder(hidden, feat_cache=features, feat_idx=[0], **options).float()
    if vae.config["patch_size"] is not None:
        video = unpatchify(video, patch_size=vae.config["patch_size"])
    return rearrange((video.clamp(-1, 1) + 1) / 2, "b c t H W -> b t c H W"), tuple(features)
