"""What every rollout draws and solves: noise, of one generator or one per sample, and a clip of latents."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.diffusion.euler import euler_sample, schedule_per_frame
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.attention import TextContext
from worldmodel.models.model import WorldModel

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


def continue_clip(
    model: WorldModel,
    past: Float[Tensor, "b t 3 H W"],
    embedding: ActionEmbedding,
    text: TextContext,
    sigmas: Float[Tensor, " levels"],
    generator: Generators | None,
) -> Float[Tensor, "b n 3 H W"]:
    """The frames of one clip behind the given ones."""
    history = model.encode(past)
    num_samples, channels, num_given, *size = history.shape
    shape = (channels, model.contract.latent_grid[0], *size)
    noise = draw_noise(num_samples, shape, generator).to(history)
    schedule = schedule_per_frame(sigmas.to(history), num_samples, shape[1], num_history=num_given)
    modulations = iter(model.fdm.modulate(schedule, embedding, text))
    future = euler_sample(
        lambda noisy, sigma: model.fdm(noisy, sigma, embedding, text, next(modulations)).velocity,
        history,
        noise[:, :, num_given:],
        sigmas,
        (lambda: draw_noise(num_samples, shape, generator)[:, :, num_given:])
        if model.config.objective.sampler == "resample"
        else None,
    )
    return model.decode(torch.cat([history, future], 2))[:, past.shape[1] :]


@contextmanager
def evaluation_mode(model: WorldModel) -> Iterator[None]:
    """Walks through the modules only when the model is in training: for a small one that costs a step."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()
