import math

import torch

from worldmodel.md_vae.gaussian import Gaussian
from worldmodel.mddiff.objectives.total_correlation import (
    batch_total_correlation,
    discriminator_loss,
    discriminator_total_correlation,
    shuffled_apart,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_estimate_equals_the_definition_by_loops() -> None:
    codes, mean, log_std = normal(4, 3), normal(4, 3, seed=1), 0.3 * normal(4, 3, seed=2)
    expected = 0.0
    for i in range(4):
        density = [
            [
                math.exp(-0.5 * ((codes[i, d] - mean[j, d]) / log_std[j, d].exp()) ** 2)
                / (log_std[j, d].exp() * math.sqrt(2 * math.pi))
                for d in range(3)
            ]
            for j in range(4)
        ]
        joint = sum(math.prod(row) for row in density) / (4 * 100)
        marginals = math.prod(sum(row[d] for row in density) / (4 * 100) for d in range(3))
        expected += math.log(joint / marginals) / 4
    found = batch_total_correlation(codes, Gaussian(mean, log_std), num_pictures=100)
    assert math.isclose(found.item(), expected, rel_tol=1e-9)


def test_one_dimension_has_no_total_correlation() -> None:
    codes = normal(16, 1)
    assert abs(batch_total_correlation(codes, Gaussian(codes, codes * 0 - 1), 500).item()) < 1e-12


def test_copied_dimensions_correlate_more_than_independent_ones() -> None:
    independent = normal(512, 2)
    copied = independent[:, :1].expand(-1, 2)

    def estimate(mean: torch.Tensor) -> float:
        return batch_total_correlation(mean, Gaussian(mean, torch.full_like(mean, -1.0)), 512).item()

    assert estimate(copied) > estimate(independent) + 0.5


def test_the_size_of_the_data_moves_the_value_but_not_the_gradient() -> None:
    gradients, values = [], []
    for num_pictures in (10, 10_000):
        codes = normal(8, 3).requires_grad_()
        value = batch_total_correlation(codes, Gaussian(normal(8, 3, seed=1), codes * 0), num_pictures)
        value.backward()
        gradients.append(codes.grad)
        values.append(value.item())
    assert torch.allclose(*gradients)
    assert math.isclose(values[1] - values[0], 2 * math.log(1000), rel_tol=1e-9)  # (d - 1) log(ratio)


def test_shuffling_keeps_marginals_and_breaks_the_joint() -> None:
    column = torch.arange(1000.0)
    codes = torch.stack([column, column], 1)
    apart = shuffled_apart(codes, torch.Generator().manual_seed(0))
    assert torch.equal(apart.sort(0).values, codes)
    assert abs(torch.corrcoef(apart.T)[0, 1]) < 0.2


def test_the_ideal_discriminator_estimates_the_true_total_correlation() -> None:
    """Two standard normal codes with correlation r: TC = -log(1 - r^2) / 2, and the log ratio is known."""
    r = 0.8
    first, noise = normal(200_000), normal(200_000, seed=1)
    codes = torch.stack([first, r * first + math.sqrt(1 - r * r) * noise], 1)

    def ideal(z: torch.Tensor) -> torch.Tensor:
        x, y = z[:, 0], z[:, 1]
        joint = -(x**2 - 2 * r * x * y + y**2) / (2 * (1 - r * r)) - 0.5 * math.log(1 - r * r)
        return torch.stack([joint, -(x**2 + y**2) / 2], 1)

    assert math.isclose(
        discriminator_total_correlation(codes, ideal).item(), -0.5 * math.log(1 - r * r), abs_tol=0.01
    )


def test_an_ignorant_discriminator_loses_log_2_and_gives_codes_no_gradient() -> None:
    codes = normal(32, 4).requires_grad_()
    weights = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    loss = discriminator_loss(codes, lambda z: z @ weights, torch.Generator().manual_seed(0))
    loss.backward()
    assert math.isclose(loss.item(), math.log(2), rel_tol=1e-9)
    assert codes.grad is None
    assert weights.grad is not None
