"""The gradients of MCL without a second derivative, against double backward."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from worldmodel.mcl.config import FULL_STEP, HALF_STEP, ActionMclConfig, MclConfig
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mcl.critics import ProjectionHead, VectorCritic
from worldmodel.mcl.features import derivative_along
from worldmodel.mcl.gradient_flow import freeze_unreached
from worldmodel.mcl.info_nce import near_conditions
from worldmodel.md_vae.stacked_linear import StackedLinear

LATENT, OUTPUT, CONDITION, ROWS = 3, 5, 2, 16


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Host(nn.Module):
    """Generator, critic and heads in double precision."""

    def __init__(self, config: MclConfig, linear: type[nn.Module] | None = None) -> None:
        super().__init__()
        make = linear or nn.Linear
        torch.manual_seed(0)
        self.first, self.second = make(LATENT + CONDITION, 16), make(16, OUTPUT)
        critic = VectorCritic(LATENT, OUTPUT, CONDITION, hidden_dim=32, linear=make)
        width = config.feature_dim(LATENT, OUTPUT)
        heads = (ProjectionHead(width, 16, linear=make), ProjectionHead(CONDITION, 16, linear=make))
        self.mcl = MechanisticContrast(config, critic, *heads)
        self.double()

    def generate(self, z: Tensor, u: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(torch.cat([z, u], -1)).tanh())
        return hidden

    def gradients(self, z: Tensor, u: Tensor, seed: int = 0) -> tuple[float, dict[str, Tensor]]:
        self.zero_grad()
        loss = self.mcl(self.generate, z, u, rng=rng(seed)).loss.sum()
        loss.backward()
        found = {name: p.grad.clone() for name, p in self.named_parameters() if p.grad is not None}
        return loss.item(), found


def rows(*lead: int) -> tuple[Tensor, Tensor]:
    z = torch.randn(*lead, ROWS, LATENT, generator=rng(1), dtype=torch.float64)
    u = torch.randn(*lead, ROWS, CONDITION, generator=rng(2), dtype=torch.float64)
    return z, u


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm of what is expected, in generator and critic."""
    names = [name for name, value in expected.items() if "head" not in name and value.abs().max() > 0]
    missed = torch.cat([(found[name] - expected[name]).flatten() for name in names])
    return (missed.norm() / torch.cat([expected[name].flatten() for name in names]).norm()).item()


@pytest.mark.parametrize("variant", ["infonce", "jacobian_vjp"])
def test_the_gradients_are_those_of_double_backward(variant: str) -> None:
    z, u = rows()
    loss, expected = Host(MclConfig(mode="exact", variant=variant)).gradients(z, u)
    errors = []
    for step in (1e-1, 1e-2, 1e-3):
        config = MclConfig(mode="first_order", variant=variant, difference="central", step=step)
        value, found = Host(config).gradients(z, u)
        assert value == pytest.approx(loss, rel=1e-12)
        errors.append(distance(found, expected))
    assert errors[2] < 1e-6
    assert 90 < errors[1] / errors[2] < 110  # second order: a tenth of the step, a hundredth of the error


def test_one_sided_steps_are_right_on_average() -> None:
    z, u = rows()
    _, expected = Host(MclConfig(mode="exact")).gradients(z, u)
    host = Host(MclConfig(mode="first_order", difference="one_sided", step=0.1))
    each = [host.gradients(z, u, seed)[1] for seed in range(100)]
    mean = {name: torch.stack([one[name] for one in each]).mean(0) for name in expected if name in each[0]}
    single = distance(each[0], expected)
    assert single < 0.1
    assert distance(mean, expected) < 0.3 * single


def test_hosts_that_train_side_by_side_get_their_own_gradients() -> None:
    def stacked(inputs: int, outputs: int) -> nn.Module:
        return StackedLinear(inputs, outputs, [rng(seed) for seed in (inputs, outputs)])

    z, u = rows(2)
    _, expected = Host(MclConfig(mode="exact"), stacked).gradients(z, u)
    config = MclConfig(mode="first_order", difference="central", step=1e-3)
    assert distance(Host(config, stacked).gradients(z, u)[1], expected) < 1e-5


class OnceDifferentiable(torch.autograd.Function):
    """Like a fused kernel: has a backward, but none of its own."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].cos()


def test_no_second_derivative_is_ever_taken() -> None:
    z, u = rows()
    host = Host(MclConfig(mode="first_order"))
    host.generate = lambda z, u: OnceDifferentiable.apply(host.second(host.first(torch.cat([z, u], -1))))
    _, found = host.gradients(z, u)
    assert found["first.weight"].abs().max() > 0
    host.mcl.config = MclConfig(mode="exact")
    with pytest.raises(RuntimeError, match="once_differentiable"):
        host.gradients(z, u)


def test_a_fixed_critic_gets_no_gradient_and_the_generator_the_same() -> None:
    z, u = rows()
    trained, fixed = (
        Host(MclConfig(mode="first_order", step=1e-3, difference="central", critic=critic))
        for critic in ("trained", "fixed")
    )
    freeze_unreached(fixed.mcl)
    (_, expected), (_, found) = trained.gradients(z, u), fixed.gradients(z, u)
    assert not any(name.startswith("mcl.critic") for name in found)
    assert any(name.startswith("mcl.critic") for name in expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_every_sample_moves_by_the_step_whatever_its_derivative() -> None:
    z, seen = torch.zeros(3, 4, dtype=torch.float64), []
    direction = torch.tensor([[1e-6] * 4, [1.0, 0, 0, 0], [0.0] * 4], dtype=torch.float64)
    slope = torch.arange(4.0, dtype=torch.float64)

    def scores(points: Sequence[Tensor]) -> list[Tensor]:
        seen.extend(points)
        return [(point * slope).sum(-1) for point in (z, *points)]

    for is_central in (True, False):
        along = derivative_along(scores, z, direction, 1, step=0.1, is_central=is_central)
        torch.testing.assert_close(along, direction @ slope)
    assert len(seen) == 3
    moved = seen[0].square().mean(-1).sqrt()
    torch.testing.assert_close(moved, torch.tensor([0.1, 0.1, 0.0], dtype=torch.float64))


def test_half_precision_gets_long_central_steps() -> None:
    config = MclConfig()
    assert (config.step_size(False), config.is_central(False)) == (FULL_STEP, False)
    assert (config.step_size(True), config.is_central(True)) == (HALF_STEP, True)
    assert MclConfig(step=0.5, difference="one_sided").step_size(True) == 0.5


@pytest.mark.parametrize("mode", ["jvp", "finite_difference"])
@pytest.mark.parametrize("direction", ["fixed", "given", "redrawn"])
def test_a_direction_is_fixed_for_a_run_or_shown_or_neither(mode: str, direction: str) -> None:
    z, u = rows()
    host, seen = Host(MclConfig(mode=mode, direction=direction)), []
    host.mcl.gradient_head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for seed in (1, 2):
        host.mcl(host.generate, z, u, rng=rng(seed))
    assert torch.equal(seen[0], seen[1]) == (direction == "fixed")
    assert seen[0].shape[-1] == (OUTPUT + LATENT if direction == "given" else OUTPUT)
    if direction == "given":
        shown = seen[0][:, OUTPUT:]
        assert torch.equal(shown, shown[:1].expand_as(shown))
        assert shown[0].norm().item() == pytest.approx(1)


def test_near_conditions_are_a_share_of_each_range() -> None:
    u = torch.tensor([[0.0, 0.0], [0.04, 3.0], [0.5, 50.0], [1.0, 100.0]])
    assert near_conditions(u, 0.05)[0].tolist() == [True, True, False, False]
    assert near_conditions(u, 0.01)[0].tolist() == [True, False, False, False]
    # By default from the data: the median difference is about 0.5, a tenth of it is 0.05.
    assert near_conditions(u, None)[0].tolist() == [True, True, False, False]
    assert near_conditions(torch.ones(3, 2), None).all()


def test_auxiliaries_have_heads_and_terms_of_their_own_or_one_together() -> None:
    torch.manual_seed(0)
    z, u = (tensor.float() for tensor in rows())
    robots = torch.eye(2)[torch.arange(ROWS) % 2]
    losses = {}
    for terms in ("own", "joint"):
        config = ActionMclConfig(mode="first_order", terms=terms, auxiliaries=("embodiment",))
        heads = [ProjectionHead(width, 16) for width in (LATENT, CONDITION, LATENT, 2)]
        mcl = MechanisticContrast(
            config, VectorCritic(LATENT, OUTPUT, CONDITION), *heads[:2], {"embodiment": tuple(heads[2:])}
        )
        decoder = nn.Linear(LATENT + CONDITION, OUTPUT)
        output = mcl(
            lambda z, u, d=decoder: d(torch.cat([z, u], -1)).tanh(), z, u, also={"embodiment": robots}
        )
        output.loss.backward()
        assert all(p.grad.abs().max() > 0 for p in heads[3].parameters())
        losses[terms] = output.loss.item()
    assert losses["own"] > losses["joint"]  # two sums of logarithms against one
    assert losses["joint"] < 2 * math.log(ROWS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share is in"),
        ({"latent": "history", "variant": "nce", "mode": "exact"}, "works with variant infonce"),
        ({"tolerance_share": 1.5}, "tolerance_share is in"),
        ({"step": -1.0}, "step must not be negative"),
    ],
)
def test_impossible_readings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActionMclConfig(**options)
