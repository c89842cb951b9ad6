import copy

import torch

from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.diffusion.flow import add_noise, sigma_per_frame
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.place_map import PlaceMapConfig
from worldmodel.models.actions.tokens import TokensConfig


def noisy_clip(model, batch) -> tuple[torch.Tensor, torch.Tensor]:
    latents = model.encode(batch.frames)
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(0))
    sigma = sigma_per_frame(torch.tensor([0.1, 0.4, 0.7, 1.0]), latents.shape[2], num_history=1)
    return add_noise(latents, noise, sigma), sigma


def answer(model, batch, *, with_keys: bool = False):
    noisy, sigma = noisy_clip(model, batch)
    return model.fdm(
        noisy, sigma, model.interface(batch.robot_actions), model.text_context(with_keys=with_keys)
    )


@torch.no_grad()
def test_clean_and_velocity_networks_answer_in_the_same_flow(make_world_model, batch, randomize):
    clean, velocity = (make_world_model(small=SmallNetConfig(p)) for p in ("clean", "velocity"))
    for model in (clean, velocity):
        randomize(model.interface)
        noisy, sigma = noisy_clip(model, batch)
        output = answer(model, batch)
        future = (noisy - sigma[:, None, :, None, None] * output.velocity)[:, :, 1:]
        assert torch.allclose(future, output.clean[:, :, 1:], atol=1e-4)
    # The same network: what one calls velocity, the other adds to the first latent frame.
    first = noisy_clip(clean, batch)[0][:, :, :1]
    assert torch.allclose(answer(clean, batch).clean - first, answer(velocity, batch).velocity, atol=1e-6)


@torch.no_grad()
def test_given_frames_come_back_as_they_are(make_world_model, batch):
    model = make_world_model()
    noisy, _ = noisy_clip(model, batch)
    assert torch.equal(answer(model, batch).clean[:, :, :1], noisy[:, :, :1])


@torch.no_grad()
def test_prepared_keys_give_the_same_answer(make_world_model, batch, randomize):
    model = make_world_model(actions=ActionConfig(tokens=TokensConfig()))
    randomize(model.interface)
    model.text = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
    plain, prepared = (answer(model, batch, with_keys=keys).velocity for keys in (False, True))
    assert torch.allclose(plain, prepared, atol=1e-6)


def test_a_prompt_of_one_token_is_answered_before_it_is_asked(make_world_model, batch, randomize):
    model = make_world_model()
    randomize(model.interface)
    noisy, sigma = noisy_clip(model, batch)
    value = model.fdm.backbone.blocks[0].attn2.to_v.weight
    for count in (1, len(batch.frames)):  # one prompt for all samples, or one each
        token = torch.randn(count, 1, 32, generator=torch.Generator().manual_seed(0))
        results = []
        # The same token twice is asked, gets half of the attention each time, and must answer the same.
        for model.text, with_keys in ((token, False), (token, True), (token.repeat(1, 2, 1), False)):
            text = model.text_context(with_keys=with_keys)
            velocity = model.fdm(noisy, sigma, model.interface(batch.robot_actions), text).velocity
            results.append((velocity, torch.autograd.grad(velocity.square().sum(), value)[0]))
        for now, prepared, asked in zip(*results, strict=True):
            assert (now - asked).norm() < 1e-5 * asked.norm()
            assert (prepared - asked).norm() < 1e-5 * asked.norm()


def test_only_a_prompt_of_one_token_needs_no_questions(make_world_model):
    paths = (({}, False), ({"place_map": PlaceMapConfig()}, False), ({"tokens": TokensConfig()}, True))
    for path, is_asked in paths:
        attention = make_world_model(actions=ActionConfig(**path)).fdm.backbone.blocks[0].attn2
        assert attention.to_q.weight.requires_grad == is_asked
        assert attention.to_v.weight.requires_grad


@torch.no_grad()
def test_modulation_made_before_gives_the_same_answer(make_world_model, batch, randomize):
    model = make_world_model()
    randomize(model.interface)
    noisy, sigma = noisy_clip(model, batch)
    actions, text = model.interface(batch.robot_actions), model.text_context()
    steps = model.fdm.modulate(torch.stack([sigma, sigma / 2]), actions, text)
    for step, made in enumerate(steps):
        level = sigma / 2**step
        now, before = (model.fdm(noisy, level, actions, text, m).velocity for m in (None, made))
        assert torch.allclose(now, before, atol=1e-6)
    assert not torch.allclose(before, model.fdm(noisy, sigma, actions, text).velocity, atol=1e-3)


def test_gradient_checkpointing_gives_the_same_gradients(make_world_model, batch, randomize):
    gradients = []
    for checkpointing in (False, True):
        model = make_world_model(
            actions=ActionConfig(tokens=TokensConfig()), small=SmallNetConfig("velocity")
        )
        randomize(model.interface)
        if checkpointing:
            model.fdm.backbone.enable_gradient_checkpointing()
        answer(model, batch).velocity.square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    plain, checkpointed = gradients
    assert plain.keys() == checkpointed.keys()
    assert plain["interface.tokens.gates"].abs().max() > 0
    for name, gradient in plain.items():
        assert torch.allclose(gradient, checkpointed[name], rtol=1e-4, atol=1e-7), name


@torch.no_grad()
def test_a_copy_of_the_model_is_independent_of_it(make_world_model, batch, randomize):
    # The scene embedding hangs on a hook: a copy (as EMA makes one) must call its own.
    model = make_world_model(small=SmallNetConfig("velocity"))
    twin = copy.deepcopy(model)
    before = answer(model, batch).velocity
    randomize(twin.small.scene)
    assert torch.equal(answer(model, batch).velocity, before)
    assert (answer(twin, batch).velocity - before).abs().max() > 1e-3


@torch.no_grad()
def test_batch_equals_singles(make_world_model, batch, randomize):
    model = make_world_model(actions=ActionConfig(tokens=TokensConfig()), small=SmallNetConfig("velocity"))
    randomize(model.interface)
    noisy, sigma = noisy_clip(model, batch)
    together = answer(model, batch).velocity
    for i in range(4):
        actions = model.interface(batch.robot_actions[i : i + 1])
        alone = model.fdm(noisy[i : i + 1], sigma[i : i + 1], actions, model.text_context()).velocity
        assert torch.allclose(alone[0], together[i], atol=1e-5)
