import dataclasses

import pytest
import torch

from tests.support.host_reads import host_reads
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.backbone import LoraConfig
from worldmodel.models.config import ObjectiveConfig
from worldmodel.objectives.training_step import mcl_gradient_flow, world_model_step
from worldmodel.types import latent_frame_actions

REGIMES = ("no_action", "acg", "lacg")
MODES = ("exact", "detached", "jvp", "finite_difference")


def step(model, batch, seed=0):
    return world_model_step(model, batch, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("regime", REGIMES)
def test_gradient_flowes_all_that_trains_and_nothing_frozen(make_world_model, batch, regime, mode, rank):
    if regime == "no_action" and mode:
        pytest.skip("nothing to contrast")
    mcl = ActionMclConfig(mode=mode) if mode else None
    model = make_world_model(regime=regime, lora=LoraConfig(rank=rank), mcl=mcl)
    losses = step(model, batch)
    losses.total.backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without
    frozen = [p for p in model.parameters() if not p.requires_grad]
    assert len(frozen) > 0
    assert all(p.grad is None for p in frozen)
    assert not any(p.requires_grad for p in model.vae.parameters())
    assert losses.total.isfinite()
    assert set(losses.parts) >= {"reconstruction"} | ({"mcl"} if mode else set())
    if rank:
        trained = [n for n, p in model.fdm.backbone.named_parameters() if p.requires_grad]
        assert trained
        assert all("lora" in name for name in trained)


@pytest.mark.parametrize("prediction", ["velocity", "clean"])
@pytest.mark.parametrize("regime", REGIMES)
def test_a_few_steps_lower_the_loss(make_world_model, batch, regime, prediction):
    model = make_world_model(regime=regime, small=SmallNetConfig(prediction))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    values = []
    for _ in range(12):
        optimizer.zero_grad()
        losses = step(model, batch)
        losses.total.backward()
        optimizer.step()
        values.append(float(losses.parts["reconstruction"].detach()))
    assert values[-1] < 0.9 * values[0]


def test_steps_repeat_with_their_seed_and_differ_without(make_world_model, batch):
    model = make_world_model(regime="lacg")
    first, again, other = step(model, batch), step(model, batch), step(model, batch, seed=1)
    assert torch.equal(first.total, again.total)
    assert not torch.equal(first.total, other.total)


def test_cached_latents_give_the_loss_of_their_frames(make_world_model, batch):
    model = make_world_model(regime="acg")
    cached = dataclasses.replace(batch, latents=model.encode(batch.frames))
    assert torch.equal(step(model, batch).total, step(model, cached).total)


def test_frames_are_asked_for_where_they_are_needed(make_world_model, batch):
    model = make_world_model(regime="lacg")
    without = dataclasses.replace(batch, latents=model.encode(batch.frames), frames=None)
    with pytest.raises(ValueError, match=r"lacg needs frames.*synthetic/episode"):
        step(model, without)
    judged = make_world_model(regime="acg")
    with pytest.raises(ValueError, match="idm_weight"):
        step(judged, without)
    plain = make_world_model(regime="acg", objective=ObjectiveConfig(idm_weight=0.0))
    assert plain.idm is None
    assert set(step(plain, without).parts) == {"reconstruction"}


def test_padded_dimensions_do_not_matter(make_world_model, batch, randomize):
    model = make_world_model(regime="acg")
    randomize(model.interface)
    mask = batch.action_mask.clone()
    mask[:, -2:] = False
    padded = dataclasses.replace(batch, action_mask=mask)
    junk = batch.robot_actions.clone()
    junk[:, :, -2:] = 99
    assert torch.equal(
        step(model, padded).total, step(model, dataclasses.replace(padded, robot_actions=junk)).total
    )


def test_history_frames_are_given_clean_and_too_short_clips_refused(make_world_model, batch):
    seen = []
    model = make_world_model(regime="acg", history=2)
    hook = model.fdm.register_forward_pre_hook(lambda _, args: seen.append(args[:2]))
    step(model, batch)
    hook.remove()
    noisy, sigma = seen[0]
    assert torch.equal(noisy[:, :, :2], model.encode(batch.frames)[:, :, :2])
    assert sigma[:, :2].abs().max() == 0
    assert sigma[:, 2:].min() > 0
    with pytest.raises(ValueError, match="more than the 4 latent frames"):
        step(make_world_model(regime="acg", history=4), batch)


def test_judge_and_controller_do_not_shape_the_latent_actions(make_world_model, batch):
    objective = ObjectiveConfig(beta=0.0, adversarial_weight=0.0)
    model = make_world_model(regime="lacg", objective=objective)
    losses = step(model, batch)
    # The interface starts at zero: the forward model sends no gradient to z yet, so none must be left.
    losses.total.backward()
    assert model.idm.latent_mean[-1].weight.grad.abs().max() == 0
    assert model.controller.out[-1].weight.grad.abs().max() > 0
    assert model.idm.robot_action[-1].weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    "options",
    [
        {"regime": "acg"},
        {"regime": "lacg", "mcl": ActionMclConfig(mode="finite_difference")},
        {"regime": "acg", "mcl": ActionMclConfig(mode="first_order", critic="trained", share=0.5)},
        {"regime": "acg", "objective": ObjectiveConfig(forcing="prefix", sink_jump=0.3), "causal": True},
        {"regime": "no_action", "objective": ObjectiveConfig(pixel_weight=1.0)},
    ],
)
def test_a_step_never_waits_for_values(make_world_model, batch, options):
    model = make_world_model(**options)
    with host_reads() as found:
        step(model, batch).total.backward()
    assert not found


def test_action_groups_follow_the_timeline():
    actions = torch.arange(8.0).view(1, 8, 1)
    assert latent_frame_actions(actions)[0].tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("mode", ["exact", "detached", "finite_difference"])
def test_validation_without_gradients_gives_the_losses_of_training(make_world_model, batch, mode):
    model = make_world_model(regime="acg", mcl=ActionMclConfig(mode=mode))
    training = step(model, batch)
    with torch.no_grad():
        validation = step(model, batch)
    assert torch.allclose(validation.total, training.total, atol=1e-5)


def test_reach_of_mcl_is_said_in_words(make_world_model, batch, randomize):
    def statement(mode: str) -> dict[str, str]:
        model = make_world_model(regime="acg", mcl=ActionMclConfig(mode=mode))
        randomize(model.interface)
        lines = mcl_gradient_flow(model, batch, torch.Generator().manual_seed(0)).splitlines()[1:]
        return {
            name.strip(): verdict.split()[0].rstrip(",") for name, verdict in (x.split(":") for x in lines)
        }

    assert statement("exact") == {
        "backbone": "yes",
        "action interface": "yes",
        "inverse dynamics": "NO",
        "critic, heads": "yes",
    }
    detached = statement("detached")
    assert detached.pop("critic, heads") == "yes"
    assert set(detached.values()) == {"NO"}
    with pytest.raises(ValueError, match="no mcl term"):
        mcl_gradient_flow(make_world_model(), batch, torch.Generator())


def test_pixel_error_trains_the_model_through_the_frozen_decoder(make_world_model, batch):
    objective = ObjectiveConfig(idm_weight=0.0, pixel_weight=0.5, pixel_share=0.5)
    model = make_world_model(regime="acg", small=SmallNetConfig(scene=False), objective=objective)
    plain = make_world_model(
        regime="acg",
        small=SmallNetConfig(scene=False),
        objective=dataclasses.replace(objective, pixel_weight=0.0),
    )
    losses, without = step(model, batch), step(plain, batch)
    assert torch.equal(losses.parts["reconstruction"], without.parts["reconstruction"])
    expected = losses.parts["reconstruction"] + 0.5 * losses.parts["pixels"]
    assert float(losses.total.detach()) == pytest.approx(float(expected), rel=1e-6)
    losses.total.backward()
    without.total.backward()
    gradients = [m.fdm.backbone.get_parameter("proj_out.weight").grad for m in (model, plain)]
    assert not torch.allclose(*gradients)
    assert all(p.grad is None for p in model.vae.parameters())


def test_pixel_error_needs_an_autoencoder(make_world_model, batch):
    model = make_world_model(regime="acg", objective=ObjectiveConfig(idm_weight=0.0, pixel_weight=1.0))
    cached = dataclasses.replace(batch, latents=model.encode(batch.frames), frames=None)
    model.vae = None
    with pytest.raises(ValueError, match=r"name one in model\.vae"):
        step(model, cached)
    with pytest.raises(ValueError, match=r"pixel_share in \(0, 1\], got 1\.0 and 0"):
        ObjectiveConfig(pixel_weight=1.0, pixel_share=0.0)
