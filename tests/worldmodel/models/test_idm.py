import math

import pytest
import torch
from transformers import Dinov2Config, Dinov2Model

from worldmodel.models.idm import Controller, IdmConfig, InverseDynamicsModel, LatentActions

TINY = IdmConfig(
    image_height=32, image_width=32, encoder_width=48, encoder_layers=2, encoder_heads=2, hidden=32
)


def make_idm(config: IdmConfig = TINY) -> InverseDynamicsModel:
    torch.manual_seed(0)
    return InverseDynamicsModel(config, latent_action_dim=5, robot_action_dim=7).eval()


@torch.no_grad()
def test_identical_frames_give_no_latent_action():
    idm = make_idm()
    still = torch.rand(2, 1, 3, 32, 32).expand(-1, 4, -1, -1, -1)
    moving = torch.rand(2, 4, 3, 32, 32)
    assert idm.latent_actions(idm(still)).mean.abs().max() == 0
    assert idm.latent_actions(idm(moving)).mean.abs().mean() > 1e-3


@torch.no_grad()
def test_each_latent_action_belongs_to_its_own_sample_and_pair():
    # Flattening (b p) and regrouping as (p b) would hand latent actions to other samples; batch > 1 shows it.
    idm = make_idm()
    frames = torch.rand(3, 5, 3, 32, 32)
    together = idm.latent_actions(idm(frames)).mean
    judged = idm.robot_actions(idm(frames))
    for sample in range(3):
        for pair in range(4):
            alone = idm(frames[sample : sample + 1, pair : pair + 2])
            assert torch.allclose(idm.latent_actions(alone).mean[0, 0], together[sample, pair], atol=1e-5)
            assert torch.allclose(idm.robot_actions(alone)[0, 0], judged[sample, pair], atol=1e-5)


@torch.no_grad()
def test_frames_are_resized_and_bytes_equal_floats():
    idm = make_idm()
    frames = torch.randint(0, 256, (1, 3, 3, 64, 48), dtype=torch.uint8)
    assert torch.allclose(idm(frames).motion, idm(frames / 255).motion, atol=1e-5)


def test_kl_and_sampling_are_those_of_a_gaussian():
    mean, std = torch.full((4, 3, 2), 0.7), 0.5
    posterior = LatentActions(mean, torch.full_like(mean, 2 * math.log(std)))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(0.7, std), torch.distributions.Normal(0.0, 1.0)
    )
    assert float(posterior.kl()) == pytest.approx(2 * float(expected), rel=1e-5)
    many = LatentActions(mean.repeat(2000, 1, 1), posterior.logvar.repeat(2000, 1, 1))
    drawn = many.sample(torch.Generator().manual_seed(0))
    assert float(drawn.mean()) == pytest.approx(0.7, abs=0.01)
    assert float(drawn.std()) == pytest.approx(std, abs=0.01)


def test_pretrained_encoder_is_loaded_and_can_stay_frozen(tmp_path):
    torch.manual_seed(1)
    encoder = Dinov2Model(
        Dinov2Config(image_size=28, patch_size=14, hidden_size=24, num_hidden_layers=1, num_attention_heads=2)
    )
    encoder.save_pretrained(tmp_path)
    config = IdmConfig(
        pretrained=str(tmp_path), freeze_encoder=True, image_height=42, image_width=28, hidden=16
    )
    idm = make_idm(config)
    loaded = idm.encoder.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in encoder.state_dict().items())
    features = idm(torch.rand(1, 3, 3, 42, 28))
    (idm.latent_actions(features).mean.sum() + idm.robot_actions(features).sum()).backward()
    assert all(p.grad is None for p in idm.encoder.parameters())
    assert idm.motion.weight.grad.abs().max() > 0


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="30x32 is not a multiple of patch_size 16"):
        IdmConfig(image_height=30, image_width=32)


@torch.no_grad()
def test_controller_reads_commands_in_order_and_never_ahead():
    torch.manual_seed(0)
    controller = Controller(robot_action_dim=7, feature_dim=16, latent_action_dim=5)
    actions, features = torch.randn(2, 6, 7), torch.randn(2, 16)
    reference = controller(actions, features)
    changed = actions.clone()
    changed[:, 3] += 1
    moved = (controller(changed, features) - reference).abs().amax((0, 2))
    assert moved[:3].max() == 0
    assert moved[3:].min() > 0
    assert (controller(actions, features + 1) - reference).abs().min() > 0


def test_the_memory_of_the_controller_stays_in_float32_under_autocast() -> None:
    controller = Controller(robot_action_dim=7, feature_dim=16, latent_action_dim=5)
    seen = []
    controller.memory.register_forward_pre_hook(
        lambda _, given: seen.append((torch.is_autocast_enabled("cpu"), *(x.dtype for x in given)))
    )
    with torch.autocast("cpu", torch.bfloat16):
        controller(torch.randn(2, 3, 7), torch.randn(2, 16))
    assert seen == [(False, torch.float32, torch.float32)]


@pytest.mark.parametrize("size", [(32, 48), (48, 16), (32, 32)])
def test_frames_need_not_be_square(size: tuple[int, int]) -> None:
    config = IdmConfig(
        image_height=size[0], image_width=size[1], encoder_width=24, encoder_layers=1, encoder_heads=2
    )
    idm = InverseDynamicsModel(config, latent_action_dim=None, robot_action_dim=3)
    assert idm(torch.rand(1, 3, 3, *size)).motion.shape == (1, 2, config.hidden)
