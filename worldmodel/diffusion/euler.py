"""Solving the flow from noise to data; the sampler knows a velocity field and nothing of networks."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.diffusion.flow import shift_sigma, sigma_per_frame

# (noisy latents [b c f h w], sigma [b f]) -> velocity [b c f h w]
VelocityFn = Callable[[Tensor, Tensor], Tensor]
Generators = torch.Generator | Sequence[torch.Generator]


def draw_noise(
    num_samples: int, shape: tuple[int, ...], generator: Generators | None
) -> Float[Tensor, "b c f h w"]:
    """Noise of this shape for each sample; with one generator each, it does not depend on the batch."""
    if isinstance(generator, Sequence):
        if len(generator) != num_samples:
            raise ValueError(f"expected {num_samples} generators, one per sample, got {len(generator)}")
        return torch.stack([torch.randn(shape, generator=one, device=one.device) for one in generator])
    device = "cpu" if generator is None else generator.device
    return torch.randn((num_samples, *shape), generator=generator, device=device)


def sigma_schedule(num_steps: int, shift: float) -> Float[Tensor, " levels"]:
    """Noise levels from 1 down to 0: `num_steps` even steps, shifted."""
    if num_steps < 1:
        raise ValueError(f"at least one inference step is needed, got {num_steps}")
    return shift_sigma(torch.linspace(1, 0, num_steps + 1), shift)


def schedule_per_frame(
    sigmas: Float[Tensor, " levels"], num_samples: int, num_frames: int, *, num_history: int
) -> Float[Tensor, "steps b f"]:
    """The noise level of every latent frame before each step."""
    every = sigmas[:-1].repeat_interleave(num_samples)
    per_frame = sigma_per_frame(every, num_frames, num_history=num_history)
    return per_frame.unflatten(0, (-1, num_samples))


def euler_sample(
    velocity: VelocityFn,
    history: Float[Tensor, "b c past h w"],
    noise: Float[Tensor, "b c future h w"],
    sigmas: Float[Tensor, " levels"],
    redraw: Callable[[], Float[Tensor, "b c future h w"]] | None = None,
) -> Float[Tensor, "b c future h w"]:
    """Follow the velocity from `noise` at sigmas[0] to sigmas[-1]; history frames stay as they are.

    The velocity is evaluated once for each step, in order. With `redraw`, which draws noise, every step
    estimates the clean latents and adds new noise of the next level, instead of an Euler step.
    """
    num_history = history.shape[2]
    latents = torch.cat([history, noise], 2)
    shape = len(latents), latents.shape[2]
    per_frame = schedule_per_frame(sigmas.to(latents), *shape, num_history=num_history)
    for (level, following), sigma in zip(pairwise(sigmas.tolist()), per_frame, strict=True):
        change, future = velocity(latents, sigma)[:, :, num_history:], latents[:, :, num_history:]
        if redraw is None or following == 0:
            future = future + (following - level) * change
        else:
            future = (1 - following) * (future - level * change) + following * redraw().to(future)
        latents = torch.cat([history, future], 2)
    return latents[:, :, num_history:]
