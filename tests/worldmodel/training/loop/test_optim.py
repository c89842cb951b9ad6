import itertools
import math

import pytest
import torch
from torch import nn

from tests.support.toy_run import toy_model
from worldmodel.training.loop.optim import (
    ExponentialMovingAverage,
    OptimConfig,
    describe_groups,
    lr_factor,
    make_optimizer,
    set_lr,
    trainable_parameters,
)


def test_schedule_rises_stays_flat_and_ends_at_the_final_fraction() -> None:
    config = OptimConfig(warmup_steps=10, schedule="cosine", decay_fraction=0.5, final_lr_fraction=0.1)
    factors = [lr_factor(step, 100, config) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:51] == [1.0] * 42
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[51:]))
    assert factors[99] == pytest.approx(0.1)


def test_constant_schedule_without_warmup_is_one() -> None:
    assert {lr_factor(step, 100, OptimConfig()) for step in (0, 50, 99, 500)} == {1.0}


def test_cosine_is_half_way_in_the_middle_of_the_decay() -> None:
    config = OptimConfig(schedule="cosine", decay_fraction=1.0, final_lr_fraction=0.0)
    assert lr_factor(50, 101, config) == pytest.approx(0.5)


def test_groups_get_their_multiplier_and_vectors_no_decay() -> None:
    model = toy_model()
    config = OptimConfig(lr=0.01, lr_multipliers={"action_*": 5.0}, weight_decay=0.1)
    optimizer = make_optimizer(model, config)
    rate = {id(p): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert rate[id(model.action_head.weight)] == (0.05, 0.1)
    assert rate[id(model.action_head.bias)] == (0.05, 0.0)
    assert rate[id(model.blocks[0].linear.weight)] == (0.01, 0.1)
    assert id(model.frozen.weight) not in rate
    set_lr(optimizer, 0.5, config)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.005, 0.025]
    assert any(
        "x5" in line and "68" not in line and "64 parameters" in line for line in describe_groups(optimizer)
    )


def test_a_multiplier_that_matches_nothing_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    make_optimizer(toy_model(), OptimConfig(lr_multipliers={"acton_*": 5.0}))
    assert "no trained parameter matches 'acton_*'" in caplog.text


def test_a_frozen_model_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        make_optimizer(nn.Linear(2, 2).requires_grad_(False), OptimConfig())


def test_average_follows_the_recursion_and_gives_the_weights_back() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    ema = ExponentialMovingAverage(model, OptimConfig(ema_decay=0.5))
    expected = 0.0
    for n in range(5):
        model.weight.data.fill_(n + 1.0)
        ema.update()
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * (n + 1.0)
    assert math.isclose(ema.average["weight"].item(), expected, rel_tol=1e-6)
    with ema.applied():
        assert math.isclose(model.weight.item(), expected, rel_tol=1e-6)
    assert model.weight.item() == 5.0


def test_average_of_named_modules_only() -> None:
    model = toy_model()
    ema = ExponentialMovingAverage(model, OptimConfig(ema_decay=0.5, ema_modules=("blocks.*",)))
    assert set(ema.average) == {name for name in trainable_parameters(model) if name.startswith("blocks.")}
    with pytest.raises(ValueError, match="matches no trained parameter"):
        ExponentialMovingAverage(model, OptimConfig(ema_decay=0.5, ema_modules=("block.*",)))


def test_average_is_kept_in_float32_for_bf16_weights() -> None:
    model = nn.Linear(2, 2).to(torch.bfloat16)
    ema = ExponentialMovingAverage(model, OptimConfig(ema_decay=0.999))
    ema.update()
    assert {tensor.dtype for tensor in ema.average.values()} == {torch.float32}


@pytest.mark.parametrize(
    "wrong", [{"lr": 0}, {"ema_decay": 1.0}, {"decay_fraction": 0.0}, {"warmup_steps": -1}]
)
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        OptimConfig(**wrong)  # type: ignore[arg-type]


@torch.no_grad()
def test_all_averages_move_at_once_to_the_same_bits() -> None:
    model = toy_model()
    ema = ExponentialMovingAverage(model, OptimConfig(ema_decay=0.9))
    expected = {name: average.clone() for name, average in ema.average.items()}
    for number in range(3):
        for name, parameter in trainable_parameters(model).items():
            parameter.add_(torch.randn_like(parameter))
            expected[name].lerp_(parameter, 1 - min(0.9, (1 + number) / (10 + number)))
        ema.update()
    assert all(torch.equal(ema.average[name], value) for name, value in expected.items())
