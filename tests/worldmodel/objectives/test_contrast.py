"""Readings of MCL in the world model: where gradients go, and that first order equals double backward."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.backbone import LoraConfig, checkpoint_blocks
from worldmodel.models.config import ObjectiveConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.contrast import task_vector
from worldmodel.objectives.training_step import mcl_term, world_model_step
from worldmodel.types import ClipBatch

LATENTS = ("noisy", "history", "latent_action")
OBJECTIVE = ObjectiveConfig(idm_weight=0.0, action_dropout=0.0)


def parts(model: WorldModel) -> dict[str, list[nn.Parameter]]:
    """The parts of the model that MCL may train, by name."""
    assert model.mcl is not None
    critic = model.mcl.critic
    assert isinstance(critic, nn.Module)
    heads = [*model.mcl.gradient_head.parameters(), *model.mcl.condition_head.parameters()]
    return {
        "backbone": list(model.fdm.parameters()),
        "interface": list(model.interface.parameters()),
        "IDM": [] if model.idm is None else list(model.idm.parameters()),
        "critic": list(critic.parameters()),
        "heads": heads,
    }


def gradients(model: WorldModel, batch: ClipBatch) -> dict[str, Tensor]:
    """The gradient of the contrast alone, for each part; parts without a gradient are omitted."""
    model.zero_grad()
    mcl_term(model, batch, torch.Generator().manual_seed(1)).backward()
    found = {
        name: [p.grad.flatten() for p in some if p.grad is not None] for name, some in parts(model).items()
    }
    joined = {name: torch.cat(values) for name, values in found.items() if values}
    return {name: value for name, value in joined.items() if value.abs().max() > 0}


@pytest.fixture
def make_contrasted(make_world_model, randomize):
    def make(regime: str = "acg", **settings) -> WorldModel:
        mcl = ActionMclConfig(**{"mode": "first_order", **settings})
        model = make_world_model(regime=regime, mcl=mcl, objective=OBJECTIVE)
        randomize(model.interface)
        return model.eval()

    return make


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("regime", ["acg", "lacg"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_first_order_has_the_gradients_of_double_backward_in_every_part(
    make_contrasted, batch, latent, regime, share
):
    expected = gradients(make_contrasted(regime, mode="exact", latent=latent, share=share), batch)
    found = gradients(make_contrasted(regime, latent=latent, share=share, difference="central"), batch)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        cosine = torch.cosine_similarity(found[name], value, dim=0)
        assert cosine > 0.999, (name, cosine)
        assert found[name].norm() == pytest.approx(value.norm().item(), rel=0.02), name


@pytest.mark.parametrize(
    ("settings", "reached"),
    [
        ({}, {"backbone", "interface", "critic", "heads"}),
        ({"critic": "fixed"}, {"backbone", "interface", "heads"}),
        ({"latent": "history"}, {"backbone", "interface", "critic", "heads"}),
        ({"latent": "latent_action", "critic": "fixed"}, {"backbone", "interface", "heads"}),
        ({"key": "embedding"}, {"backbone", "interface", "critic", "heads"}),
        ({"mode": "detached"}, {"heads"}),
        ({"mode": "finite_difference", "direction": "given"}, {"backbone", "interface", "heads"}),
    ],
)
def test_each_reading_sends_its_gradients_where_it_says(make_contrasted, batch, settings, reached):
    assert set(gradients(make_contrasted(**settings), batch)) == reached


@pytest.mark.parametrize("latent", LATENTS)
def test_latent_actions_are_trained_through_whatever_the_latent_is(make_contrasted, batch, latent):
    assert "IDM" in gradients(make_contrasted("lacg", latent=latent), batch)


def test_a_share_of_the_clips_is_contrasted_and_all_are_reconstructed(make_contrasted, batch):
    sizes = []
    model = make_contrasted(share=0.5, difference="central").train()
    model.fdm.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    losses = world_model_step(model, batch, torch.Generator().manual_seed(0))
    assert sizes == [2, 8]  # contrasted; then all clips and twice the contrasted ones displaced
    losses.total.backward()
    other = dataclasses.replace(batch, robot_actions=batch.robot_actions.clone())
    other.robot_actions[2:] = 0  # what drives the others does not enter the contrast
    again = world_model_step(model, other, torch.Generator().manual_seed(0))
    assert torch.equal(again.parts["mcl"], losses.parts["mcl"])
    assert not torch.equal(again.parts["reconstruction"], losses.parts["reconstruction"])


def test_checkpointed_blocks_see_passes_of_few_clips(make_contrasted, batch):
    sizes = []
    model = make_contrasted(share=0.5, difference="central").train()
    assert checkpoint_blocks(model)
    model.fdm.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    world_model_step(model, batch, torch.Generator().manual_seed(0)).total.backward()
    assert sizes == [2, 2, 2, 2]  # contrasted, the others, and twice the contrasted ones displaced


def test_a_backbone_in_half_precision_gets_central_steps(make_world_model, batch):
    mcl, sizes = ActionMclConfig(mode="first_order"), []
    model = make_world_model(mcl=mcl, objective=OBJECTIVE, dtype="bfloat16", lora=LoraConfig(rank=2)).train()
    model.fdm.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    world_model_step(model, batch, torch.Generator().manual_seed(0)).total.backward()
    assert sizes == [4, 4, 4]


def test_a_whole_share_costs_one_more_forward_pass(make_contrasted, batch):
    sizes = []
    model = make_contrasted().train()
    model.fdm.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    world_model_step(model, batch, torch.Generator().manual_seed(0))
    assert sizes == [4, 4]


@pytest.mark.parametrize("terms", ["own", "joint"])
def test_robot_and_task_are_contrasted_beside_the_action(make_contrasted, batch, terms):
    model = make_contrasted(auxiliaries=("embodiment", "task"), terms=terms).train()
    named = dataclasses.replace(batch, tasks=("lift", "lift", "push", "push"))
    losses = world_model_step(model, named, torch.Generator().manual_seed(0))
    losses.total.backward()
    assert model.mcl is not None
    for heads in model.mcl.auxiliary_heads.values():
        assert all(p.grad.abs().max() > 0 for p in heads.parameters())
    with pytest.raises(ValueError, match="needs clips that name their task"):
        world_model_step(model, dataclasses.replace(batch, tasks=()), torch.Generator())
    assert torch.equal(task_vector("lift"), task_vector("lift"))
    assert (task_vector("lift") @ task_vector("push")).abs() < 0.9


def test_history_rows_are_clips_keyed_by_all_their_actions(make_contrasted, batch):
    model, seen = make_contrasted(latent="history"), {}
    assert model.mcl is not None
    model.mcl.gradient_head.register_forward_pre_hook(lambda _, given: seen.update(feature=given[0]))
    model.mcl.condition_head.register_forward_pre_hook(lambda _, given: seen.update(key=given[0]))
    mcl_term(model, batch, torch.Generator().manual_seed(0))
    actions = batch.robot_actions * batch.action_mask[:, None]
    assert seen["feature"].shape == (4, 16 * 8 * 8)
    torch.testing.assert_close(seen["key"], actions.flatten(1))
