"""Which latent frames of a training clip are given, and the noise levels of the others.

`clip`: the history is given, one noise level for the rest, as for generating a whole clip. `prefix`
(diffusion forcing):

    frame      0   1   2   3   4
    sigma      0   0   0  .9  .7      three given: 3 is learned as the next frame of a stream, 4 after noise
    sigma      0  .8  .8  .8  .8      one given, one level for all: a whole clip
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.diffusion.flow import sample_sigma, sigma_per_frame
from worldmodel.models.attention_mask import AttentionView, jump_view
from worldmodel.models.config import WorldModelConfig


@dataclass(frozen=True)
class Forcing:
    """Noise levels of a batch of clips."""

    sigma: Float[Tensor, "b f"]
    num_given: int | Int[Tensor, " b"]  # leading frames without a loss
    view: AttentionView | None = None  # attention mask, if not the model's usual one

    def to(self, device: torch.device) -> "Forcing":
        """The noise levels on another device."""
        given = self.num_given if isinstance(self.num_given, int) else self.num_given.to(device)
        return Forcing(self.sigma.to(device), given, None if self.view is None else self.view.to(device))


def draw_forcing(
    config: WorldModelConfig, num_samples: int, num_frames: int, generator: torch.Generator
) -> Forcing:
    """Draw noise levels by the config's objective, on the CPU."""
    if config.objective.forcing == "prefix":
        return _prefix(config, num_samples, num_frames, generator)
    sigma = sample_sigma(num_samples, shift=config.objective.shift, generator=generator)
    sigma = sigma_per_frame(sigma, num_frames, num_history=config.history)
    return Forcing(sigma, config.history)


def _prefix(
    config: WorldModelConfig, num_samples: int, num_frames: int, generator: torch.Generator
) -> Forcing:
    def shares() -> Float[Tensor, " b"]:
        return torch.rand(num_samples, generator=generator)

    objective, history = config.objective, config.history
    num_given = history + ((num_frames - history) * shares()).long()
    sigma = sample_sigma(num_samples * num_frames, shift=objective.shift, generator=generator)
    sigma = sigma.view(num_samples, num_frames)
    sigma = torch.where(shares()[:, None] < 0.5, sigma[:, :1], sigma)
    context = objective.context_noise * shares() * (shares() < 0.5)
    frames = torch.arange(num_frames, device=sigma.device)
    sigma = torch.where(frames < num_given[:, None], context[:, None], sigma)
    sigma = torch.where(frames < history, 0.0, sigma)
    if not objective.sink_jump:
        return Forcing(sigma, num_given)
    # At least one given frame after the jump: a stream always caches the latest.
    jump = (shares() * (num_given - 1)).long() * (shares() < objective.sink_jump)
    return Forcing(sigma, num_given, jump_view(num_frames, jump))
