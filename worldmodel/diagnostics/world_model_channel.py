"""A world model as `generator(latent, actions) -> frames`, for the diagnostics of its action channel."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.diagnostics.action_channel import VideoGenerator
from worldmodel.models.world_model import WorldModel
from worldmodel.objectives.flow_matching import add_noise
from worldmodel.pipelines.sampler import euler_sample, sigma_schedule


def world_model_channel(
    model: WorldModel,
    frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
    *,
    num_inference_steps: int = 4,
) -> VideoGenerator:
    """One clip behind the given frames: noise[b c f h w] of the whole clip and robot actions -> new frames.

    Actions are normalised, one per transition of the clip. A latent-action model hears them through its
    controller. Attention on CPU has no forward-mode derivative: use differences.
    """
    if model.training:
        raise ValueError("the world model is in training mode: call .eval() first")
    num_given = frames.shape[1]
    with torch.no_grad():
        history, text = model.encode(frames), model.text_context()
    sigmas = sigma_schedule(num_inference_steps, model.config.objective.shift)
    level = model.config.history_noise

    def generate(noise: Tensor, actions: Tensor) -> Tensor:
        driven = model.control(actions, frames[:, -1]) if model.config.regime == "lacg" else actions
        embedding, past = model.interface(driven), history.shape[2]
        sigma = history.new_full(history.shape[:1] + history.shape[2:3], level)
        future = euler_sample(
            lambda noisy, sigma: model.fdm(noisy, sigma, embedding, text).velocity,
            add_noise(history, noise[:, :, :past], sigma),
            noise[:, :, past:],
            sigmas,
            history_sigma=level,
        )
        return model.decode(torch.cat([history, future], 2))[:, num_given:]

    return generate
