"""DDIM sampling of a noise-predicting model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.checked import check_ranges

NoiseFn = Callable[[Tensor, Tensor], Tensor]  # (noisy, time steps) -> predicted noise


@dataclass(frozen=True)
class NoiseConfig:
    """The forward (noising) process; time step 0 is almost clean, num_steps - 1 almost pure noise."""

    num_steps: int = 1000  # T
    beta_start: float = 0.0015  # variance added in the first step
    beta_end: float = 0.0155  # variance added in the last step
    # The paper writes "linear"; in its code that name makes sqrt(beta) grow linearly.
    schedule: Literal["scaled_linear", "linear"] = "scaled_linear"  # which grows linearly: sqrt(beta) or beta
    # Leading steps start below the last time step, a visible error when there are few of them.
    spacing: Literal["trailing", "leading"] = "trailing"  # of sampling; the published code: leading

    def __post_init__(self) -> None:
        check_ranges(self, num_steps=(1, 100_000), beta_start=(0, 1), beta_end=(0, 1))


def build_scheduler(config: NoiseConfig) -> DDIMScheduler:
    """The same process as a diffusers scheduler."""
    is_leading = config.spacing == "leading"
    return DDIMScheduler(
        num_train_timesteps=config.num_steps,
        beta_start=config.beta_start,
        beta_end=config.beta_end,
        beta_schedule=config.schedule,
        clip_sample=False,
        timestep_spacing=config.spacing,
        set_alpha_to_one=not is_leading,
        steps_offset=int(is_leading),
    )


def draw_steps(count: int, config: NoiseConfig, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Draw uniform time steps for training."""
    return torch.randint(config.num_steps, (count,), generator=generator)


@torch.no_grad()
def ddim_sample(
    predict_noise: NoiseFn,
    start: Float[Tensor, "b c h w"],
    config: NoiseConfig,
    *,
    num_steps: int,
    eta: float = 0.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """Denoise from noise to a clean latent; eta 0 is deterministic, 1 adds fresh noise as DDPM does."""
    if not 1 <= num_steps < config.num_steps:
        raise ValueError(f"DDIM takes 1 to {config.num_steps - 1} steps here, got {num_steps}")
    scheduler = build_scheduler(config)
    scheduler.set_timesteps(num_steps)
    x = start
    for step in scheduler.timesteps:
        noise = predict_noise(x, step.expand(len(x)).to(x.device))
        x = scheduler.step(noise, step, x, eta=eta, generator=generator, return_dict=False)[0]
    return x
