"""A video from a model of whole clips: each block is a clip behind the recent frames.

A block costs as much as a clip, however few of its frames are used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.device import Precision
from worldmodel.diffusion.euler import Generators, draw_noise, euler_sample, schedule_per_frame
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.actions.published.kept_first import history_actions, standing_before
from worldmodel.models.attention import TextContext
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.commands import driving
from worldmodel.types import Actions, map_tensors


@dataclass(frozen=True)
class Sampler:
    """How noise becomes latents, the same for a whole video."""

    text: TextContext  # the prompt, prepared for many calls
    sigmas: Float[Tensor, " levels"]
    generator: Generators | None
    precision: Precision = "auto"  # of the matrix products


def advance(
    model: WorldModel,
    recent: Float[Tensor, "b t 3 H W"],
    past: Actions,
    actions: Actions,
    num_actions: int,
    sampler: Sampler,
) -> tuple[Float[Tensor, "b n 3 H W"], Actions]:
    """Generate the frames that follow the actions; also returns the actions between the recent frames."""
    embedding, known = embed_clip(model, recent, past, actions)
    history = model.encode(recent)
    num_samples, channels, _, *size = history.shape
    shape = (channels, model.contract.latent_grid[0], *size)
    draw = partial(draw_noise, num_samples, shape, sampler.generator)
    made = sample(model, history, draw().to(history), embedding, sampler.text, sampler.sigmas, draw)
    count, keeps_first = recent.shape[1], model.config.actions.keeps_first
    past = history_actions(known, num_actions + count - 1, count, keeps_first)
    return made[:, count:][:, :num_actions], past


def embed_clip(
    model: WorldModel, recent: Float[Tensor, "b t 3 H W"], past: Actions, actions: Actions
) -> tuple[ActionEmbedding, Actions]:
    """The embedding of the clip that begins with the recent frames, and its actions as they were embedded.

    The last action is held to the end of the clip. Past actions of a latent-action model that are not known
    are inferred from the frames; of another model they get the null embedding.
    """
    num_past, num_latents = recent.shape[1] - 1, model.contract.latent_grid[0]
    ahead = driving(model, actions.pad_last(model.contract.num_frames - 1 - num_past), recent[:, -1])
    missing = torch.zeros(len(recent), num_latents, dtype=torch.bool, device=recent.device)
    if not num_past:
        return model.embed(ahead.values, ahead.extras, missing), ahead
    if ahead.latent is not None and past.latent is None:
        past = Actions(latent=model.infer_latent_actions(recent), extras=past.extras)
    past = standing_before(past, ahead, num_past) if model.config.actions.keeps_first else past
    blank = map_tensors(ahead[:num_past].pad_last(num_past), torch.zeros_like)
    missing[:, : model.config.history] = past.count is None
    known = (blank if past.count is None else past).concat(ahead)
    return model.embed(known.values, known.extras, missing), known


def sample(
    model: WorldModel,
    history: Float[Tensor, "b c past h w"],
    noise: Float[Tensor, "b c f h w"],
    embedding: ActionEmbedding,
    text: TextContext,
    sigmas: Float[Tensor, " levels"],
    draw: Callable[[], Float[Tensor, "b c f h w"]] | None = None,
) -> Float[Tensor, "b t 3 H W"]:
    """The frames of a whole clip, from the latents of its first frames and noise for all of it.

    `draw` gives new noise to a model whose sampler takes it at every step.
    """
    num_past = history.shape[2]
    schedule = schedule_per_frame(sigmas.to(history), len(history), noise.shape[2], num_history=num_past)
    modulations = iter(model.fdm.modulate(schedule, embedding, text))
    future = euler_sample(
        lambda noisy, sigma: model.fdm(noisy, sigma, embedding, text, next(modulations)).velocity,
        history,
        noise[:, :, num_past:],
        sigmas,
        (lambda: draw()[:, :, num_past:]) if draw and model.config.objective.sampler == "resample" else None,
    )
    return model.decode(torch.cat([history, future], 2))
