"""The flow used throughout: x = (1 - sigma) data + sigma noise, sigma in [0, 1]; velocity = noise - data.

sigma is given per latent frame, so that history frames can be clean while future frames are noisy; Wan's
timestep is 1000 sigma. A network may predict the velocity or the clean latent: x_0 = x - sigma velocity
converts one into the other, so both train and sample the same flow and differ only in the weight of each
noise level.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

TIMESTEPS = 1000  # Wan's timestep = TIMESTEPS * sigma
# Below this sigma the noisy sample is used as the clean estimate: dividing by less would amplify rounding.
MIN_SIGMA = 1e-3
# Clean prediction weighs the squared error by 1 / max(sigma, this)^2 instead of the velocity loss's
# 1 / sigma^2.
CLEAN_WEIGHT_SIGMA = 0.5


def shift_sigma(sigma: Float[Tensor, "..."], shift: float) -> Float[Tensor, "..."]:
    """Shift noise levels towards 1 by Wan's flow shift; 0 and 1 stay fixed."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def sample_sigma(num_samples: int, *, shift: float, generator: torch.Generator) -> Float[Tensor, " n"]:
    """Logit-normal(0, 1) noise levels, shifted."""
    normal = torch.randn(num_samples, generator=generator)
    return shift_sigma(torch.sigmoid(normal), shift)


def sigma_per_frame(sigma: Float[Tensor, " b"], num_frames: int, *, num_history: int) -> Float[Tensor, "b f"]:
    """The sample's sigma on every future latent frame, 0 on the leading history frames."""
    per_frame = sigma[:, None].repeat(1, num_frames)
    per_frame[:, :num_history] = 0.0
    return per_frame


def add_noise(
    data: Float[Tensor, "b c f h w"], noise: Float[Tensor, "b c f h w"], sigma: Float[Tensor, "b f"]
) -> Float[Tensor, "b c f h w"]:
    """Noisy latents at each frame's sigma; a frame with sigma 0 is returned untouched."""
    level = _broadcast(sigma, data)
    return (1 - level) * data + level * noise


def clean_from_velocity(
    noisy: Float[Tensor, "b c f h w"], velocity: Float[Tensor, "b c f h w"], sigma: Float[Tensor, "b f"]
) -> Float[Tensor, "b c f h w"]:
    """The one-step clean estimate x_0 = x - sigma velocity."""
    return noisy - _broadcast(sigma, noisy) * velocity


def velocity_from_clean(
    noisy: Float[Tensor, "b c f h w"], clean: Float[Tensor, "b c f h w"], sigma: Float[Tensor, "b f"]
) -> Float[Tensor, "b c f h w"]:
    """Inverse of `clean_from_velocity`."""
    return (noisy - clean) / _broadcast(sigma, noisy).clamp(min=MIN_SIGMA)


def velocity_loss(
    velocity: Float[Tensor, "b c f h w"],
    data: Float[Tensor, "b c f h w"],
    noise: Float[Tensor, "b c f h w"],
    *,
    num_history: int | Int[Tensor, " b"],
) -> Float[Tensor, " b"]:
    """Mean squared error to (noise - data) over the future latent frames, one value per sample."""
    return _future_mean((velocity.float() - (noise - data).float()).square(), num_history)


def clean_loss(
    clean: Float[Tensor, "b c f h w"],
    data: Float[Tensor, "b c f h w"],
    sigma: Float[Tensor, "b f"],
    *,
    num_history: int | Int[Tensor, " b"],
) -> Float[Tensor, " b"]:
    """Squared error of the clean estimate; its weight is that of the velocity loss, bounded at low noise."""
    weight = _broadcast(sigma, data).float().clamp(min=CLEAN_WEIGHT_SIGMA).pow(-2)
    return _future_mean(weight * (clean.float() - data.float()).square(), num_history)


def is_future(num_history: int | Int[Tensor, " b"], like: Float[Tensor, "b f"]) -> Bool[Tensor, "b f"]:
    """Mask of the latent frames after the history, whose length may differ between samples."""
    history = num_history if isinstance(num_history, int) else num_history[:, None]
    return (torch.arange(like.shape[1], device=like.device) >= history).expand_as(like)


def _future_mean(
    error: Float[Tensor, "b c f h w"], num_history: int | Int[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """Mean over all future frames, weighted equally even if their number differs between samples."""
    if isinstance(num_history, int):
        return error[:, :, num_history:].flatten(1).mean(1)
    frames = error.mean((1, 3, 4))
    weight = is_future(num_history, frames).to(frames)
    return (frames * weight).mean(1) / weight.mean()


def _broadcast(sigma: Float[Tensor, "b f"], like: Float[Tensor, "b c f h w"]) -> Float[Tensor, "b 1 f 1 1"]:
    return sigma[:, None, :, None, None].to(like.dtype)
