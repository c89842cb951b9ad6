import math
from collections.abc import Iterator

import pytest
import torch
from bench.identifiability import BATCH, PlainVae, flops_per_seed_step
from torch.utils.flop_counter import FlopCounterMode

from worldmodel.mcl.config import MclConfig
from worldmodel.md_vae.model import VaeConfig
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig
from worldmodel.md_vae.stacked import OptimizationConfig, SeedStack
from worldmodel.md_vae.stacked_linear import StackedLinear

DATA = IdentifiabilityDataConfig(latent_dim=20, num_samples=500)


def layer_pairs(stack: SeedStack, plain: PlainVae) -> Iterator[tuple[StackedLinear, torch.nn.Linear]]:
    ours = (*stack.model.encoder, *stack.model.decoder)
    for one, other in zip(ours, (*plain.encoder, *plain.decoder), strict=True):
        if isinstance(one, StackedLinear):
            yield one, other


def test_the_base_of_the_benchmark_does_the_work_of_a_stack() -> None:
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


def test_operations_are_counted_as_torch_counts_them() -> None:
    plain = PlainVae(DATA)
    with FlopCounterMode(display=False) as counter:
        plain(torch.randn(BATCH, DATA.width), torch.randn(BATCH, DATA.condition_dim)).backward()
    assert counter.get_total_flops() == flops_per_seed_step(DATA)
