import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from worldmodel.diffusion.euler import euler_sample, sigma_schedule


@pytest.fixture
def latents() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    history = torch.randn(2, 4, 2, 6, 6, generator=generator)
    data, noise = torch.randn(2, 2, 4, 3, 6, 6, generator=generator)
    return history, data, noise


@pytest.mark.parametrize("num_steps", [1, 3, 8])
def test_the_true_velocity_leads_to_the_data_in_any_number_of_steps(latents, num_steps):
    history, data, noise = latents

    def velocity(noisy: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        assert torch.equal(noisy[:, :, :2], history)
        assert sigma[:, :2].abs().max() == 0
        return torch.cat([torch.full_like(history, 99), noise - data], 2)

    sampled = euler_sample(velocity, history, noise, sigma_schedule(num_steps, shift=3.0))
    assert torch.allclose(sampled, data, atol=1e-5)


def test_steps_are_those_of_the_diffusers_euler_scheduler(latents):
    history, _, noise = latents
    sigmas = sigma_schedule(5, shift=3.0)
    assert sigmas[0] == 1
    assert sigmas[-1] == 0

    def field(noisy: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return torch.sin(noisy) * sigma[:, None, :, None, None]

    ours = euler_sample(field, history, noise, sigmas)
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=sigmas[:-1].tolist())
    theirs = noise
    for step, timestep in enumerate(scheduler.timesteps):
        level = scheduler.sigmas[step].expand(2, 3)
        theirs = scheduler.step(field(theirs, level), timestep, theirs).prev_sample
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="at least one inference step is needed, got 0"):
        sigma_schedule(0, shift=3.0)


def test_resampling_adds_new_noise_to_the_clean_estimate(latents):
    history, data, noise = latents
    sigmas = sigma_schedule(3, shift=3.0)
    seen, drawn = [], []

    def velocity(noisy: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        seen.append(noisy[:, :, 2:])
        level = sigma[:, None, 2:, None, None]
        return torch.cat([torch.zeros_like(history), (noisy[:, :, 2:] - data) / level], 2)

    def redraw() -> torch.Tensor:
        drawn.append(torch.full_like(noise, float(len(drawn) + 1)))
        return drawn[-1]

    sampled = euler_sample(velocity, history, noise, sigmas, redraw)
    assert torch.allclose(sampled, data, atol=1e-5)
    assert len(drawn) == 2  # not after the last step
    for level, after, fresh in zip(sigmas[1:-1], seen[1:], drawn, strict=True):
        assert torch.allclose(after, (1 - level) * data + level * fresh, atol=1e-5)
