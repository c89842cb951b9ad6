"""A video from a causal model: one latent frame at a time, with the keys and values of earlier ones cached.

One network call makes a latent frame in one step. It carries the frame before, now known, beside the noise,
and so writes the keys and values of that frame. Further sampling steps carry the new frame alone.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.diffusion.euler import draw_noise, euler_sample
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.attention_mask import stream_view
from worldmodel.models.kv_cache import FrameMemory, MemoryCall
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import DecoderState, decode_next, open_decoder
from worldmodel.pipelines.commands import driving
from worldmodel.pipelines.whole_clip import Sampler
from worldmodel.types import FRAMES_PER_LATENT, Actions, num_video_frames


@dataclass(frozen=True)
class CausalState:
    """State of a causal video: latents, KV cache and decoder state."""

    first: Float[Tensor, "b c 1 h w"]
    waiting: Float[Tensor, "b c f h w"]  # known, but not in the cache yet; the last is the latest of all
    embedding: ActionEmbedding  # of the waiting ones
    memory: FrameMemory
    decoder: DecoderState
    num_latents: int  # so far
    window: int  # latent frames that are remembered beside the first


def open_video(
    model: WorldModel, frames: Float[Tensor, "b t 3 H W"], past: Actions, window: int | None = None
) -> CausalState:
    """The state after the given frames; `past` holds the actions between them."""
    window = default_window(model) if window is None else window
    if window < 1:
        raise ValueError(f"a window has 1 latent frame or more, got {window}")
    given = frames[:, -num_video_frames(_num_given(model, frames.shape[1], past, window)) :]
    latents, num_actions = model.encode(given), given.shape[1] - 1
    assert model.vae is not None, "a model that encodes has an autoencoder"
    decoder = open_decoder(model.vae, latents)
    past = past[frames.shape[1] - 1 - num_actions :] if num_actions else Actions()
    if num_actions and model.config.regime == "lacg" and past.latent is None:
        past = replace(past, robot=None, latent=model.infer_latent_actions(given))
    embedding = _embed(model, driving(model, past, frames[:, -1]), latents, latents.shape[2])
    return CausalState(
        latents[:, :, :1], latents, embedding, FrameMemory(), decoder, latents.shape[2], window
    )


def advance(
    model: WorldModel,
    state: CausalState,
    frame: Float[Tensor, "b 3 H W"],
    actions: Actions,
    sampler: Sampler,
) -> tuple[Float[Tensor, "b 4 3 H W"], CausalState]:
    """Generate the four frames that follow these actions; also returns the new state."""
    assert model.vae is not None, "a model that encodes has an autoencoder"
    both = _embed(model, driving(model, actions, frame), state.first, 2)
    if state.num_latents == 1:  # what a path embeds for the first frame comes with the first transitions
        state = replace(state, embedding=both[:1])
    embedding = both[1:]
    latents, memory = _sample(model, state, embedding, sampler)
    decoded, decoder = decode_next(model.vae, state.decoder, latents)
    return decoded, replace(
        state,
        waiting=latents,
        embedding=embedding,
        memory=memory,
        decoder=decoder,
        num_latents=state.num_latents + 1,
    )


def default_window(model: WorldModel) -> int:
    """The frames that the last frame of a training clip attends to, not counting the first."""
    return max(1, model.contract.latent_grid[0] - 2)


def _num_given(model: WorldModel, num_frames: int, past: Actions, window: int) -> int:
    """How many latent frames to start from: all that the model has learned to start from."""
    config = model.config
    if config.objective.forcing == "clip" or (config.regime == "acg" and past.robot is None):
        return config.history
    return min(1 + (num_frames - 1) // FRAMES_PER_LATENT, window + 1)


def _embed(
    model: WorldModel, actions: Actions, like: Float[Tensor, "b c f h w"], num_latents: int
) -> ActionEmbedding:
    """Of latent frames the first of which has no actions."""
    missing = torch.zeros(len(like), num_latents, dtype=torch.bool, device=like.device)
    return model.embed(actions.values, actions.extras, missing)


def _sample(
    model: WorldModel, state: CausalState, embedding: ActionEmbedding, sampler: Sampler
) -> tuple[Float[Tensor, "b c 1 h w"], FrameMemory]:
    """The next latent frame, and the cache with those that waited."""
    num_samples, channels, _, *size = state.first.shape
    draw = partial(draw_noise, num_samples, (channels, 1, *size), sampler.generator)
    noise, is_resampled = draw().to(state.first), model.config.objective.sampler == "resample"
    both, memory = state.embedding.concat(embedding), state.memory
    maps_before = None if both.maps is None else both.maps[:, -2:-1]
    width = model.fdm.tokens_per_frame(model.contract.latent_grid)

    def velocity(noisy: Tensor, sigma: Tensor) -> Tensor:
        nonlocal memory
        latents, actions, is_first = noisy, embedding, memory is state.memory
        if is_first:
            latents, actions = torch.cat([state.waiting, noisy], 2), both
            sigma = torch.cat([sigma.new_zeros(num_samples, state.waiting.shape[2]), sigma], 1)
        newest = state.num_latents
        numbers = tuple(range(newest + 1 - latents.shape[2], newest + 1))
        call = MemoryCall(memory, numbers, state.window, width)
        view = stream_view(call, state.first, state.waiting[:, :, -1:], maps_before)
        found: Tensor = model.fdm(latents, sigma, actions, sampler.text, view=view).velocity
        if is_first:
            memory = memory.with_frames(numbers[:-1], call, state.window)
        return found

    made = euler_sample(velocity, noise[:, :, :0], noise, sampler.sigmas, draw if is_resampled else None)
    return made, memory
