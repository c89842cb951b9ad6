import dataclasses
from collections.abc import Iterator

import pytest
import torch
from diffusers import WanTransformer3DModel

from tests.support.tiny_wan import tiny_wan
from worldmodel.desk.small_net import SmallNet, SmallNetConfig
from worldmodel.models.actions.adaln import AdalnConfig
from worldmodel.models.actions.interface import ActionConfig, ActionInterface
from worldmodel.models.actions.place_map import PlaceMapConfig
from worldmodel.models.actions.protocol import ActionEmbedding, PathShape
from worldmodel.models.actions.tokens import TokensConfig
from worldmodel.models.backbone import build_wan
from worldmodel.models.dynamics import ForwardDynamics

FRAMES, PATCHES = 3, 16
WIDTH = 48


@pytest.fixture(autouse=True)
def reproducible() -> Iterator[None]:
    # Several threads split a matrix product by its number of rows, which changes the last bit.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def make_interface(has_tokens: bool = False, has_maps: bool = False) -> ActionInterface:
    config = ActionConfig(
        adaln=AdalnConfig(32),
        tokens=TokensConfig(32) if has_tokens else None,
        place_map=PlaceMapConfig(64) if has_maps else None,
    )
    return ActionInterface(config, PathShape(5, WIDTH, 2, 2, patch=(2, 2), grid=(8, 8)))


def randomize(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)


def base_velocity(
    backbone: WanTransformer3DModel, noisy: torch.Tensor, sigma: torch.Tensor, text: torch.Tensor
) -> torch.Tensor:
    return backbone(noisy, (1000 * sigma).repeat_interleave(PATCHES, 1), text, return_dict=False)[0]


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    sigma = torch.tensor([[0.0, 0.7, 0.7], [0.0, 0.0, 0.2]])
    return torch.randn(2, 16, FRAMES, 8, 8), sigma, torch.randn(2, 7, 32), torch.randn(2, 8, 5)


@pytest.mark.parametrize(("has_tokens", "has_maps"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("has_scene", [False, True])
@torch.no_grad()
def test_untrained_interface_leaves_wan_bit_for_bit(inputs, has_tokens, has_maps, has_scene):
    noisy, sigma, text, actions = inputs
    config = SmallNetConfig("velocity", scene=has_scene)
    small = SmallNet(config, (FRAMES, 8, 8), (1, 2, 2), 16, WIDTH, map_channels=0)
    interface = make_interface(has_tokens, has_maps)
    fdm = ForwardDynamics(build_wan(tiny_wan()), small, interface.gates)
    expected = base_velocity(build_wan(tiny_wan()), noisy, sigma, text)
    got = fdm(noisy, sigma, interface(actions), fdm.embed_text(text)).velocity
    assert expected.std() > 0.1
    assert torch.equal(got, expected)


def test_wrapped_backbone_keeps_the_parameter_names_of_wan():
    wrapped = build_wan(tiny_wan())
    ForwardDynamics(wrapped)
    assert build_wan(tiny_wan()).state_dict().keys() == wrapped.state_dict().keys()


@torch.no_grad()
@pytest.mark.parametrize("has_tokens", [False, True])
def test_latent_frame_answers_only_to_its_own_transitions(has_tokens):
    interface = make_interface(has_tokens)
    randomize(interface)
    actions = torch.randn(1, 8, 5)
    reference = interface(actions)
    for transition in range(8):
        changed = actions.clone()
        changed[0, transition] += 1
        embedding = interface(changed)
        moved = (embedding.frames - reference.frames).abs().amax((0, 2)) > 0
        assert moved.tolist() == [frame == 1 + transition // 4 for frame in range(3)]
        if has_tokens:
            moved = (embedding.tokens - reference.tokens).abs().amax((0, 3)) > 0
            where = [divmod(int(i), 4) for i in moved.flatten().nonzero()]
            assert where == [(1 + transition // 4, transition % 4)]


@torch.no_grad()
def test_frame_zero_and_missing_actions_get_the_null_embedding():
    interface = make_interface()
    randomize(interface)
    missing = torch.tensor([[False, True, False]])
    frames = interface(torch.randn(1, 8, 5), missing=missing).frames
    assert torch.equal(frames[0, 0], interface.adaln.null)
    assert torch.equal(frames[0, 1], interface.adaln.null)
    assert not torch.equal(frames[0, 2], interface.adaln.null)
    assert interface(torch.randn(1, 0, 5)).frames.shape == (1, 1, WIDTH)


@torch.no_grad()
def test_action_maps_reach_only_their_own_latent_frame_and_none_without_actions(inputs):
    noisy, sigma, text, actions = inputs
    interface = make_interface(has_maps=True)
    randomize(interface)
    first, second = interface(actions), interface(actions + torch.eye(8)[5][:, None])
    assert [int(i) for i in (first.first_block - second.first_block).abs().amax((0, 2, 3)).nonzero()] == [2]
    missing = torch.tensor([[False, True, False]]).expand(2, -1)
    assert interface(actions, missing=missing).first_block[:, :2].abs().max() == 0
    fdm = ForwardDynamics(build_wan(dataclasses.replace(tiny_wan(), num_layers=1)))
    # One block whose self-attention is silent: each place hears its own part of the map.
    torch.nn.init.zeros_(fdm.backbone.blocks[0].attn1.to_out[0].weight)
    maps = first.first_block.clone()
    maps[:, 1, 5] += 1
    answers = [
        fdm(noisy, sigma, ActionEmbedding(first.frames, first_block=m), fdm.embed_text(text)).velocity
        for m in (first.first_block, maps)
    ]
    changed = (answers[0] - answers[1]).abs().amax((0, 1)) > 0
    expected = torch.zeros(FRAMES, 8, 8, dtype=torch.bool)
    expected[1, 2:4, 2:4] = True  # place 5 of a 4x4 grid of 2x2 latents
    assert torch.equal(changed, expected)


@torch.no_grad()
def test_action_reaches_every_block_and_the_head(inputs):
    # With all attention and feed-forward outputs at zero, only the output head is left to modulate.
    noisy, sigma, text, actions = inputs
    interface = make_interface()
    randomize(interface)
    fdm = ForwardDynamics(build_wan(tiny_wan()))
    other = interface(actions + 1)
    seen = []
    for block in fdm.backbone.blocks:
        block.register_forward_pre_hook(lambda _, args: seen.append(args[2].clone()))
    fdm(noisy, sigma, interface(actions), fdm.embed_text(text))
    fdm(noisy, sigma, other, fdm.embed_text(text))
    for layer in range(2):
        changed = (seen[layer] - seen[2 + layer]).abs().amax((1, 2)).view(2, FRAMES)
        assert changed[:, 0].max() == 0
        assert changed[:, 1:].min() > 0
    for block in fdm.backbone.blocks:
        for part in (block.attn1.to_out[0], block.attn2.to_out[0], block.ffn.net[2]):
            torch.nn.init.zeros_(part.weight)
            torch.nn.init.zeros_(part.bias)
    answers = [fdm(noisy, sigma, e, fdm.embed_text(text)).velocity for e in (interface(actions), other)]
    changed = (answers[0] - answers[1]).abs().amax((0, 1, 3, 4))
    assert changed[0] == 0
    assert changed[1:].min() > 0


@torch.no_grad()
def test_action_tokens_reach_only_their_own_latent_frame(inputs):
    noisy, sigma, text, actions = inputs
    interface = make_interface(has_tokens=True)
    randomize(interface)
    backbone = build_wan(dataclasses.replace(tiny_wan(), num_layers=1))
    fdm = ForwardDynamics(backbone, gates=interface.gates)
    # One block whose self-attention is silent: only the tokens could carry an action across frames.
    torch.nn.init.zeros_(fdm.backbone.blocks[0].attn1.to_out[0].weight)
    changed_actions = actions.clone()
    changed_actions[:, 4:] += 1
    first, second = interface(actions), interface(changed_actions)
    other = ActionEmbedding(first.frames, second.tokens)
    answers = [fdm(noisy, sigma, e, fdm.embed_text(text)).velocity for e in (first, other)]
    changed = (answers[0] - answers[1]).abs().amax((0, 1, 3, 4))
    assert changed[:2].max() == 0
    assert changed[2] > 0


def test_actions_are_embedded_in_single_precision():
    interface = make_interface(has_tokens=True, has_maps=True)
    randomize(interface)
    actions = torch.rand(2, 4 * (FRAMES - 1), 5)
    plain = interface(actions)
    with torch.autocast("cpu", torch.bfloat16):
        half = interface(actions)
    pairs = [(plain.frames, half.frames), (plain.tokens, half.tokens), (plain.first_block, half.first_block)]
    for single, other in pairs:
        assert single is not None
        assert torch.equal(single, other)


def test_a_model_without_a_path_is_refused():
    with pytest.raises(ValueError, match=r"no path: set one, as actions.adaln="):
        ActionConfig(adaln=None)


@torch.no_grad()
def test_embeddings_are_joined_with_every_field(inputs):
    interface = make_interface(has_tokens=True, has_maps=True)
    randomize(interface)
    whole = interface(inputs[-1])
    joined = whole[:1].concat(whole[1:])
    for name in ("frames", "tokens", "first_block"):
        assert torch.equal(getattr(joined, name), getattr(whole, name))
    less = ActionEmbedding(whole.frames)
    for pair in ((whole, less), (less, whole)):
        with pytest.raises(ValueError, match="cannot be joined"):
            pair[0].concat(pair[1])


def test_only_a_path_of_gated_tokens_lends_its_gates():
    interface = make_interface(has_tokens=True)
    assert interface.gates is interface["tokens"]
    other = make_interface()
    other["adaln"].gates = torch.nn.Identity()  # of its own, for something else
    assert other.gates is None
