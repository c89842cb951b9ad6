import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from worldmodel.diffusion.flow import (
    TIMESTEPS,
    add_noise,
    clean_from_velocity,
    clean_loss,
    sample_sigma,
    shift_sigma,
    sigma_per_frame,
    velocity_from_clean,
    velocity_loss,
)


@pytest.fixture
def latents() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    data, noise = torch.randn(2, 3, 4, 5, 4, 4, generator=generator)
    return data, noise


def test_sigma_zero_returns_the_data_and_sigma_one_the_noise(latents):
    data, noise = latents
    assert torch.equal(add_noise(data, noise, torch.zeros(3, 5)), data)
    assert torch.equal(add_noise(data, noise, torch.ones(3, 5)), noise)


def test_noise_convention_is_that_of_diffusers(latents):
    data, noise = latents
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    index = 321
    sigma, timestep = scheduler.sigmas[index], scheduler.timesteps[index]
    assert float(timestep) == pytest.approx(TIMESTEPS * float(sigma), rel=1e-6)
    theirs = scheduler.scale_noise(data, timestep.repeat(3), noise)
    assert torch.allclose(add_noise(data, noise, sigma.expand(3, 5)), theirs, atol=1e-6)


def test_shift_is_that_of_diffusers():
    plain, shifted = (FlowMatchEulerDiscreteScheduler(shift=shift).sigmas for shift in (1.0, 3.0))
    assert torch.allclose(shift_sigma(plain, 3.0), shifted, atol=1e-6)


def test_velocity_and_clean_estimate_are_one_answer(latents):
    data, noise = latents
    sigma = sigma_per_frame(torch.tensor([0.1, 0.5, 1.0]), 5, num_history=0)
    noisy = add_noise(data, noise, sigma)
    assert torch.allclose(clean_from_velocity(noisy, noise - data, sigma), data, atol=1e-6)
    assert torch.allclose(velocity_from_clean(noisy, data, sigma), noise - data, atol=1e-5)


def test_true_answers_have_no_loss_and_history_carries_none(latents):
    data, noise = latents
    sigma = sigma_per_frame(torch.full((3,), 0.7), 5, num_history=2)
    assert sigma[:, :2].eq(0).all()
    assert sigma[:, 2:].eq(0.7).all()
    wrong = (noise - data).clone()
    wrong[:, :, :2] += 100
    assert velocity_loss(wrong, data, noise, num_history=2).abs().max() == 0
    assert velocity_loss(wrong, data, noise, num_history=1).min() > 100
    wrong_clean = data.clone()
    wrong_clean[:, :, :2] += 100
    assert clean_loss(wrong_clean, data, sigma, num_history=2).abs().max() == 0


def test_the_two_losses_agree_where_the_weight_is_not_bounded(latents):
    data, noise = latents
    sigma = sigma_per_frame(torch.tensor([0.5, 0.8, 1.0]), 5, num_history=1)
    noisy = add_noise(data, noise, sigma)
    velocity = noise - data + 0.3
    clean = clean_from_velocity(noisy, velocity, sigma)
    ours = clean_loss(clean, data, sigma, num_history=1)
    assert torch.allclose(ours, velocity_loss(velocity, data, noise, num_history=1), rtol=1e-4)


def test_sigma_is_shifted_logit_normal_and_repeats_with_its_seed():
    sigma = sample_sigma(20_000, shift=3.0, generator=torch.Generator().manual_seed(0))
    again = sample_sigma(20_000, shift=3.0, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sigma, again)
    assert 0 < sigma.min() < sigma.max() < 1
    unshifted = sigma / (3 - 2 * sigma)
    logit = torch.logit(unshifted)
    assert float(logit.mean()) == pytest.approx(0, abs=0.03)
    assert float(logit.std()) == pytest.approx(1, abs=0.03)
