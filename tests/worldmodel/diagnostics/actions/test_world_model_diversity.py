import pytest
import torch
from torch import Tensor
from torch.func import jvp

from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.diagnostics.actions import world_model_diversity as module
from worldmodel.diagnostics.actions.diagnose import _contrasts
from worldmodel.diagnostics.actions.world_model_diversity import (
    latent_channel,
    nearby_actions,
    world_model_diversity,
)
from worldmodel.mcl.features import math_attention
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.place_map import PlaceMapConfig
from worldmodel.models.actions.tokens import TokensConfig
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.whole_clip import embed_clip
from worldmodel.types import Actions, ClipBatch


def case(model: WorldModel, batch: ClipBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Frames and noise of one clip, and five action sequences."""
    assert batch.frames is not None
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(1, model.contract.latent_channels, *model.contract.latent_grid, generator=rng)
    given = batch.frames[:1, : 4 * model.config.history - 3]
    return given, noise, nearby_actions(batch.robot_actions[:1], range(6), 4)


@pytest.mark.parametrize(
    "options",
    [
        {"small": SmallNetConfig(), "actions": ActionConfig(place_map=PlaceMapConfig())},
        {"regime": "lacg", "history": 2, "actions": ActionConfig(tokens=TokensConfig())},
    ],
)
def test_the_generator_is_one_network_call_in_double(
    make_world_model, randomize, batch: ClipBatch, options: dict
) -> None:
    model = make_world_model(**options).eval()
    for part in model.parts().values():
        randomize(part)
    given, noise, actions = case(model, batch)
    past = model.config.history
    generate = latent_channel(model, given, actions)
    choice = torch.eye(5, dtype=torch.float64).unsqueeze(1)
    with torch.no_grad():
        many = (noise.expand(5, *noise.shape[1:]), given.expand(5, *given.shape[1:]) / 255)
        noisy = torch.cat([model.encode(many[1]), many[0][:, :, past:]], 2)
        sigma = torch.ones(noisy.shape[0], noisy.shape[2])
        sigma[:, :past] = 0
        known = Actions(actions)
        embedding, _ = embed_clip(model, many[1], known[: given.shape[1] - 1], known[given.shape[1] - 1 :])
        expected = model.fdm(noisy, sigma, embedding, model.text_context()).clean[:, :, past:]
        found = generate(many[0].double(), choice)
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=1e-4)
    assert (found[0] - found[1]).abs().max() > 1e-3

    # A step of 1e-6 is lost in float32: agreement with the derivative shows that no part of it rounds.
    step = torch.randn(noise.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad(), math_attention(), module._KeepDouble():
        slope = jvp(lambda z: generate(z, choice[:1]), (noise.double(),), (step,))[1]
        ends = [generate(noise.double() + sign * 1e-6 * step, choice[:1]) for sign in (1, -1)]
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-6, slope, atol=1e-6, rtol=1e-6)


def test_actions_that_are_heard_reshape_the_answer_and_unheard_ones_do_not(
    make_world_model, randomize, batch: ClipBatch
) -> None:
    model = make_world_model().eval()
    deaf = world_model_diversity(model, *case(model, batch))  # a new interface answers zero
    assert deaf.largest_contrast < 1e-12
    assert deaf.rank.tolist() == [0]
    assert deaf.limits == ("dependent contrasts",)
    randomize(model.interface)
    heard = world_model_diversity(model, *case(model, batch))
    assert heard.largest_contrast > 1e-6
    assert heard.full_rank.all()
    assert heard.singular_values.shape == (1, 4)


def test_large_backbones_get_a_first_order_estimate(
    make_world_model, batch: ClipBatch, monkeypatch: pytest.MonkeyPatch, randomize
) -> None:
    model = make_world_model().eval()
    given, noise, actions = case(model, batch)
    monkeypatch.setattr(module, "num_backbone_parameters", lambda model: 1_300_000_000)
    with pytest.raises(ValueError, match="1300 million parameters"):
        world_model_diversity(model, given, noise, actions)
    section, rank = _contrasts(model, given, noise, actions[:1], range(6), 0)
    assert "too large for third derivatives" in section.blocks[0].text
    assert len(section.blocks) == 1
    assert "no change above the error" in rank  # a new interface answers zero
    randomize(model.interface)
    assert "in 8 of 8 independent ways" in _contrasts(model, given, noise, actions[:1], range(6), 0)[1]
