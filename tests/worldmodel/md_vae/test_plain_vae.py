import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from worldmodel.mcl.config import MclConfig
from worldmodel.md_vae.model import VaeConfig
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig
from worldmodel.md_vae.stacked import OptimizationConfig, SeedStack
from worldmodel.md_vae.stacked_linear import StackedLinear

DATA = IdentifiabilityDataConfig(latent_dim=20, num_samples=500)
BATCH = 256


class PlainVae(nn.Module):
    """The concat MD-VAE of one seed, written the usual way."""

    def __init__(self, data: IdentifiabilityDataConfig) -> None:
        super().__init__()
        d, x, a, width = data.latent_dim, data.width, data.condition_dim, data.width
        self.encoder = three_layers(x + a, width, 2 * d)
        self.decoder = three_layers(d + a, width, x)

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        mean, log_std = self.encoder(torch.cat([x, u], dim=-1)).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * log_std.exp()
        error = (self.decoder(torch.cat([z, u], dim=-1)) - x).square().sum(-1) / (2 * 0.1**2)
        kl = 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).sum(-1)
        return (error + kl).mean()


def three_layers(in_dim: int, width: int, out_dim: int) -> nn.Sequential:
    layers = [nn.Linear(in_dim, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, out_dim))


def layer_pairs(stack: SeedStack, plain: PlainVae) -> Iterator[tuple[StackedLinear, torch.nn.Linear]]:
    ours = (*stack.model.encoder, *stack.model.decoder)
    for one, other in zip(ours, (*plain.encoder, *plain.decoder), strict=True):
        if isinstance(one, StackedLinear):
            yield one, other


def test_a_stack_does_the_work_of_a_plain_vae() -> None:
    stack = SeedStack(DATA, VaeConfig(), MclConfig(), OptimizationConfig(batch_size=BATCH), [7])
    plain = PlainVae(DATA)
    for ours, theirs in layer_pairs(stack, plain):
        theirs.weight.data, theirs.bias.data = ours.weight[0].detach().T.clone(), ours.bias[0, 0].detach()
    rows, _ = next(stack.batches(1))
    x, u = rows.split(stack.row_dims, dim=-1)
    noise = torch.randn(BATCH, DATA.latent_dim, generator=torch.manual_seed(3))
    ours = stack.model.loss(x, u, noise[None]).negative_elbo
    torch.manual_seed(3)  # it draws the same noise by itself
    theirs = plain(x[0], u[0])
    constant = x.shape[-1] * math.log(0.1 * math.sqrt(2 * math.pi))  # of the density; it has no gradient
    assert theirs.item() + constant == pytest.approx(ours.item(), rel=1e-5)
    ours.sum().backward()
    theirs.backward()
    for one, other in layer_pairs(stack, plain):
        torch.testing.assert_close(one.weight.grad[0].T, other.weight.grad, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(one.bias.grad[0, 0], other.bias.grad, rtol=1e-3, atol=1e-3)
