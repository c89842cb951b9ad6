from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from worldmodel.context_module.models.action_concepts import (
    ActionConcepts,
    ActionContextConfig,
    concept_columns,
)
from worldmodel.models.config import WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step

NAMES = ("left_x", "left_gripper", "right_x", "right_gripper")
COLUMNS = concept_columns(NAMES, ("left", "right"))
Randomize = Callable[[torch.nn.Module], None]


def build(randomize: Randomize | None = None, **changes: object) -> ActionConcepts:
    torch.manual_seed(0)
    config = ActionContextConfig(width=8, **changes)
    concepts = ActionConcepts(config, COLUMNS, hidden=16, width=12, map_tokens=3)
    if randomize:
        randomize(concepts)
    return concepts


def commands(left: bool, right: bool) -> Tensor:
    """Two samples of three latent frames, in which arms move or stay where they start."""
    moving = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    home = torch.full_like(moving, 0.3)
    moves = torch.tensor([left, left, right, right])
    return torch.where(moves, moving, home)


def test_untrained_concepts_say_nothing() -> None:
    frames, maps = build()(commands(True, True))
    assert frames.shape == (2, 3, 12)
    assert maps is not None
    assert maps.shape == (2, 3, 3, 12)
    assert not frames.any()
    assert not maps.any()


@pytest.mark.parametrize(("left", "right"), [(False, False), (True, False), (False, True), (True, True)])
def test_an_arm_holds_where_its_four_commands_are_one(left: bool, right: bool) -> None:
    holds = build().holds(commands(left, right))
    assert holds.tolist() == [[[not left, not right]] * 3] * 2


@pytest.mark.parametrize("is_told", [True, False])
def test_without_effects_two_arms_are_the_sum_of_each_alone(randomize: Randomize, is_told: bool) -> None:
    concepts = build(randomize, effects=False, is_told=is_told)
    both, left, right, none = (
        torch.cat([part.flatten(2) for part in concepts(commands(*moves))], -1)
        for moves in ((True, True), (True, False), (False, True), (False, False))
    )
    assert (both - none).abs().max() > 0.1
    torch.testing.assert_close(both, left + right - none, atol=1e-5, rtol=0)


def test_effects_of_an_arm_that_holds_are_missing_where_none_holds(randomize: Randomize) -> None:
    """Why effects that were learned from single arms do not compose: they are there in training alone."""
    concepts = build(randomize)
    assert concepts.module.causal.observational is not None
    with torch.no_grad():
        concepts.module.causal.observational.zero_()  # never trained
    both, left, right, none = (
        concepts(commands(*moves))[0]
        for moves in ((True, True), (True, False), (False, True), (False, False))
    )
    assert (both - (left + right - none)).abs().max() > 0.01


def test_motion_of_one_arm_teaches_nothing_of_how_moving_arms_act_on_each_other(randomize: Randomize) -> None:
    concepts = build(randomize)
    causal = concepts.module.causal
    for moves in ((True, False), (False, True)):
        concepts(commands(*moves))[0].square().sum().backward()
    assert causal.observational is not None
    assert causal.interventional is not None
    assert not causal.observational.grad.any()  # exactly 0: an untrained effect stays the zero it started as
    assert causal.interventional.grad.any()
    concepts(commands(True, True))[0].square().sum().backward()
    assert causal.observational.grad.any()


def test_a_module_that_is_not_told_has_one_set_of_weights(randomize: Randomize) -> None:
    concepts = build(randomize, is_told=False)
    concepts(commands(True, False))[0].sum().backward()
    grad = concepts.module.noise.interventional.grad
    assert grad is None or not grad.any()


def test_samples_that_are_not_told_show_moving_weights_an_arm_that_holds(randomize: Randomize) -> None:
    concepts, groups = build(randomize, told_share=0.5), commands(True, False)
    assert concepts.heard(groups).tolist() == [[[False, True]] * 3, [[False, False]] * 3]
    assert concepts.eval().heard(groups).all(1)[:, 1].all()  # outside of training all are told
    concepts.train()(groups)[0].square().sum().backward()
    grads = concepts.module.noise.observational.grad
    assert grads is not None
    assert grads[0].any()
    assert grads[1].any()  # the right arm holds, yet its weights for motion learn what holding is


def test_codes_can_reach_each_place_apart_from_the_others(randomize: Randomize) -> None:
    frames, maps = build(randomize, modulates=False)(commands(True, True))
    assert frames.shape == (2, 3, 12)
    assert not frames.any()
    assert maps is not None
    assert maps.any()
    with pytest.raises(ValueError, match="leaves codes no path"):
        WorldModelConfig(context=ActionContextConfig(modulates=False))


def test_what_holds_can_be_told_by_hand(randomize: Randomize) -> None:
    concepts, groups = build(randomize), commands(True, False)
    told = torch.tensor([False, True]).expand(2, 3, 2)
    torch.testing.assert_close(concepts(groups, told)[0], concepts(groups)[0])
    assert not torch.allclose(concepts(groups, ~told)[0], concepts(groups)[0])


def test_grippers_can_be_concepts_beside_their_arms(randomize: Randomize) -> None:
    columns = concept_columns(NAMES, ("left", "left_gripper", "right", "right_gripper"))
    assert columns == ((0,), (1,), (2,), (3,))
    concepts = ActionConcepts(ActionContextConfig(width=8), columns, hidden=16, width=12, map_tokens=0)
    randomize(concepts)
    groups = commands(True, True)
    groups[..., 3] = 1.0  # do(right gripper open)
    assert concepts.holds(groups).tolist() == [[[False, False, False, True]] * 3] * 2


@pytest.mark.parametrize(
    ("names", "concepts"),
    [
        (NAMES, ("left",)),
        (NAMES, ("left", "right", "torso")),
        (("left_x", "base"), ("left",)),
        (NAMES, ("left", "le", "right")),
    ],
)
def test_concepts_that_do_not_divide_the_actions_are_refused(names: tuple, concepts: tuple) -> None:
    with pytest.raises(ValueError, match=r"every action belongs to one concept .* do not divide"):
        concept_columns(names, concepts)


@pytest.mark.parametrize(
    "changes",
    [{"regime": "lacg"}, {"action_path": "adaln+tokens"}, {"action_sum": True}],
    ids=str,
)
def test_a_world_model_refuses_a_context_where_it_cannot_be(changes: dict) -> None:
    with pytest.raises(ValueError, match="context embeds robot actions"):
        WorldModelConfig(context=ActionContextConfig(), **changes)


def test_a_world_model_with_a_context_starts_as_its_backbone_trains_and_comes_back(
    make_world_model, batch, randomize, tmp_path
) -> None:
    names = make_world_model().normalizer.names_of(make_world_model().normalizer.embodiments[0])
    options = {"context": ActionContextConfig(concepts=tuple(names), width=4)}
    model = make_world_model(action_path="adaln+map", **options)
    told, untold = model.interface(batch.robot_actions), make_world_model(regime="no_action").interface
    assert torch.equal(told.frames, untold(batch.robot_actions).frames)
    world_model_step(model, batch, torch.Generator().manual_seed(0)).total.backward()
    concepts = model.interface.concepts
    assert concepts is not None
    assert concepts.maps is not None
    assert concepts.maps.weight.grad.any()
    randomize(model.interface)
    model.save_pretrained(tmp_path / "model")
    again = WorldModel.from_pretrained(tmp_path / "model")
    assert torch.equal(again.interface(batch.robot_actions).maps, model.interface(batch.robot_actions).maps)
