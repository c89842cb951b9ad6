import pytest
import torch

from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.diffusion.flow import add_noise
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.actions.tokens import TokensConfig
from worldmodel.models.attention import NetworkCall, TextContext, current_call, network_call
from worldmodel.models.attention_mask import causal_view, jump_view
from worldmodel.models.config import ObjectiveConfig


@pytest.fixture
def causal(make_world_model, randomize):
    def make(**options):
        model = make_world_model(causal=True, **options)
        for part in (model.interface, model.small):
            if part is not None:
                randomize(part)
        return model

    return make


def clean(model, noisy, sigma, actions, **options):
    output = model.fdm(noisy, sigma, model.interface(actions), model.text_context(), **options)
    return output.clean


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"small": SmallNetConfig(refiner_width=8)}])
def test_a_causal_model_does_not_see_what_comes_later(causal, batch, options):
    model = causal(actions=ActionConfig(tokens=TokensConfig()), **options)
    latents = model.encode(batch.frames)
    sigma = torch.tensor([[0.0, 0.0, 0.6, 0.9]]).expand(4, -1)
    noisy = add_noise(latents, torch.randn_like(latents), sigma)
    whole = clean(model, noisy, sigma, batch.robot_actions)
    for num_frames in (2, 3):
        start = clean(
            model,
            noisy[:, :, :num_frames],
            sigma[:, :num_frames],
            batch.robot_actions[:, : 4 * num_frames - 4],
        )
        assert torch.allclose(start, whole[:, :, :num_frames], atol=1e-5)
    changed = noisy.clone()
    changed[:, :, 1] += 1
    difference = (clean(model, changed, sigma, batch.robot_actions) - whole).abs().amax((0, 1, 3, 4))
    assert difference[0] == 0
    assert (difference[1:] > 1e-4).all()


@torch.no_grad()
def test_a_model_that_is_not_causal_sees_all(make_world_model, batch):
    model = make_world_model()
    latents, sigma = model.encode(batch.frames), torch.full((4, 4), 0.5)
    whole = clean(model, latents, sigma, batch.robot_actions)
    start = clean(model, latents[:, :, :2], sigma[:, :2], batch.robot_actions[:, :4])
    assert (start - whole[:, :, :2]).abs().max() > 1e-4
    # With every frame visible, a view is no view.
    everything = causal_view(4, latents.device)
    everything = type(everything)(torch.ones_like(everything.visible), everything.positions)
    assert torch.allclose(
        clean(model, latents, sigma, batch.robot_actions, view=everything), whole, atol=1e-5
    )


@torch.no_grad()
def test_after_a_jump_the_forgotten_frames_do_not_matter(causal, batch):
    model = causal(small=SmallNetConfig())
    latents, sigma = model.encode(batch.frames), torch.tensor([[0.0, 0.0, 0.0, 0.9]]).expand(4, -1)
    view = jump_view(4, torch.tensor([0, 1, 1, 2]))
    jumped = clean(model, latents, sigma, batch.robot_actions, view=view)
    plain = clean(model, latents, sigma, batch.robot_actions)
    assert torch.allclose(jumped[0], plain[0], atol=1e-5)
    changed = latents.clone()
    changed[:, :, 1] += 1
    again = clean(model, changed, sigma, batch.robot_actions, view=view)
    difference = (again - jumped).abs().amax((1, 3, 4))
    assert difference[0, 3] > 1e-4
    assert difference[1:, 3].max() == 0
    # The clip without the forgotten frame is the same thing: its frames are as far apart as their places say.
    short = torch.cat([latents[:, :, :1], latents[:, :, 2:]], 2)
    expected = clean(model, short, sigma[:, 1:], batch.robot_actions[:, 4:])
    assert torch.allclose(jumped[1:3, :, 2:], expected[1:3, :, 1:], atol=1e-5)


def test_conditions_end_with_their_call():
    call = NetworkCall(ActionEmbedding(), TextContext(torch.zeros(1, 1, 8)))
    with network_call(call):
        assert current_call() is call
    assert current_call() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": ObjectiveConfig(forcing="prefix", sink_jump=0.5)}, "set causal"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(make_world_model, options, message):
    with pytest.raises(ValueError, match=message):
        make_world_model(**options)
