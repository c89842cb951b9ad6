import numpy as np
import pytest
import torch

from worldmodel.diagnostics.identifiability.latent_recovery import (
    axis_rotation,
    explained_variance,
    latent_recovery,
)


def test_per_condition_rotations_keep_the_information_and_lose_the_axes() -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(2, 8000, 5, generator=rng)
    condition = torch.randint(0, 4, (2, 8000), generator=rng)
    turns = torch.linalg.qr(torch.randn(2, 4, 5, 5, generator=rng))[0]
    rotated = torch.einsum("snij,snj->sni", torch.stack([turns[s, condition[s]] for s in range(2)]), z)
    found = latent_recovery(z, rotated, condition)
    np.testing.assert_allclose(found["r2_by_condition"], 1, atol=1e-6)
    assert (found["r2"] < 0.6).all()
    assert (found["mcc"] < 0.6).all()
    assert (found["mcc_by_condition"] > found["mcc"]).all()


def test_explained_variance_of_known_noise() -> None:
    rng = torch.Generator().manual_seed(1)
    z = torch.randn(3, 50_000, 2, generator=rng)
    mixed = (z + 0.5 * torch.randn(3, 50_000, 2, generator=rng)) @ torch.tensor([[2.0, 1.0], [0.0, -1.0]]) + 7
    np.testing.assert_allclose(explained_variance(z, mixed), 1 / 1.25, atol=0.01)


def test_explained_variance_ignores_dead_and_doubled_latents() -> None:
    z = torch.randn(1000, 2, generator=torch.Generator().manual_seed(2))
    doubled = torch.cat([z, z[:, :1], torch.ones(1000, 1)], dim=1)
    assert float(explained_variance(z, doubled)) == pytest.approx(1, abs=1e-6)
    assert float(explained_variance(z, torch.ones(1000, 2))) == pytest.approx(0, abs=1e-6)


def test_the_angle_of_a_known_rotation_is_found_and_turned_back() -> None:
    z = torch.randn(2, 20_000, 2, generator=torch.Generator().manual_seed(0))
    angle = torch.deg2rad(torch.tensor(30.0))
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    estimated = torch.stack([z[0] @ turn.T, -3 * z[1].flip(-1)])  # turned; swapped, scaled and mirrored
    found, turned = axis_rotation(z, estimated)
    np.testing.assert_allclose(found, [30, 0], atol=1)
    np.testing.assert_allclose(turned, 1, atol=1e-3)


def test_a_latent_that_says_nothing_is_not_turned_into_one_that_does() -> None:
    stream = torch.Generator().manual_seed(0)
    z, other = (torch.randn(1, 20_000, 3, generator=stream) for _ in range(2))
    assert axis_rotation(z, other)[1] < 0.05
    assert axis_rotation(z, torch.zeros(1, 20_000, 3))[1] == 0  # a seed that diverged
