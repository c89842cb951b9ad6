import dataclasses

import pytest
import torch

from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.diffusion.flow import clean_loss, is_future, velocity_loss
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.config import ObjectiveConfig, WorldModelConfig
from worldmodel.objectives.forcing import draw_forcing
from worldmodel.objectives.training_step import world_model_step

COUNT, FRAMES = 4000, 5


def draw(*, history=1, causal=True, **objective):
    config = WorldModelConfig(
        causal=causal, history=history, objective=ObjectiveConfig(forcing="prefix", **objective)
    )
    return draw_forcing(config, COUNT, FRAMES, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("history", [1, 2])
def test_a_prefix_is_given_and_the_rest_is_noisy(history):
    drawn = draw(history=history)
    shares = torch.bincount(drawn.num_given, minlength=FRAMES)[history:] / COUNT
    assert len(shares) == FRAMES - history
    assert (shares - 1 / len(shares)).abs().max() < 0.03
    future = is_future(drawn.num_given, drawn.sigma)
    assert (drawn.sigma[~future] == 0).all()
    assert (drawn.sigma[future] > 0).all()
    is_shared = drawn.sigma[:, -1] == drawn.sigma[:, -2]
    assert abs(float(is_shared[drawn.num_given < FRAMES - 1].float().mean()) - 0.5) < 0.03
    assert drawn.view is None


def test_given_frames_behind_the_history_may_be_noisy():
    drawn = draw(context_noise=0.2)
    given = drawn.sigma[drawn.num_given == FRAMES - 1][:, :-1]
    assert (given[:, 0] == 0).all()
    assert (given[:, 1:] == given[:, 1:2]).all()
    assert 0.19 < float(given.max()) <= 0.2
    assert abs(float((given[:, 1] > 0).float().mean()) - 0.5) < 0.05


def test_a_jump_leaves_the_latest_given_frame():
    drawn = draw(sink_jump=0.5)
    jump = drawn.view.positions[:, 0]
    assert (jump[drawn.num_given <= 2] == 0).all()
    assert (jump <= (drawn.num_given - 2).clamp(min=0)).all()
    assert set(jump.tolist()) == {0, 1, 2}
    latest = drawn.view.visible[torch.arange(COUNT), drawn.num_given, drawn.num_given - 1]
    assert latest.all()


def test_every_learned_frame_counts_alike():
    data, noise = torch.randn(2, 3, 3, 4, 4, 4)
    sigma, num_given = torch.full((3, 4), 0.8), torch.tensor([1, 2, 3])
    error = (noise - data).square().mean((1, 3, 4))
    expected = error[is_future(num_given, sigma)].mean()
    assert torch.allclose(velocity_loss(data * 0, data, noise, num_history=num_given).mean(), expected)
    error = (data / 0.8).square().mean((1, 3, 4))
    expected = error[is_future(num_given, sigma)].mean()
    assert torch.allclose(clean_loss(data * 0, data, sigma, num_history=num_given).mean(), expected)
    same = velocity_loss(data * 0, data, noise, num_history=torch.full((3,), 2))
    assert torch.allclose(same, velocity_loss(data * 0, data, noise, num_history=2))


@pytest.mark.parametrize("mode", [None, "exact", "finite_difference"])
def test_a_causal_model_learns_from_prefixes(make_world_model, batch, mode):
    objective = ObjectiveConfig(forcing="prefix", sink_jump=0.5, context_noise=0.1, idm_weight=0.0)
    options = {"small": SmallNetConfig(refiner_width=8), "objective": objective}
    model = make_world_model(causal=True, mcl=ActionMclConfig(mode=mode) if mode else None, **options)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    values = []
    for _ in range(12):
        optimizer.zero_grad()
        losses = world_model_step(model, batch, torch.Generator().manual_seed(1))
        losses.total.backward()
        optimizer.step()
        values.append(float(losses.parts["reconstruction"]))
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert values[-1] < 0.9 * values[0]


def test_prefixes_are_settings_of_the_objective():
    with pytest.raises(ValueError, match="forcing prefix"):
        ObjectiveConfig(sink_jump=0.1)
    with pytest.raises(ValueError, match="share"):
        ObjectiveConfig(forcing="prefix", sink_jump=2.0)
    assert dataclasses.asdict(WorldModelConfig())["causal"] is False
