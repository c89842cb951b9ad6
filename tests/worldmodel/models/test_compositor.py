"""Frames composed of decoded and given pixels: where they come from, and how the art is learned and used."""

import dataclasses

import pytest
import torch

from tests.support.pose_sets import HandPoses
from tests.support.tiny_wan import tiny_wan
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset, collate_clips
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.models.compositor import HEADS, Composed, Compositor, KnownFrame
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.hand_references import HandReferences
from worldmodel.models.model import WorldModel
from worldmodel.models.pose_track import PoseTrack, track_of
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.training.robot_pictures import fill_references
from worldmodel.types import map_tensors

SIZE, NUM_FRAMES, FPS = 32, 9, 10.0
# Looks along z from 1 m before the origin; the picture spans 1 m there.
CAMERA = torch.tensor([[1.0, 0, 0.5, 0.5], [0, 1.0, 0.5, 0.5], [0, 0, 1.0, 1.0]])
PICTURES = ObjectiveConfig(idm_weight=0.0, pixel_weight=1.0, pixel_share=0.5)
COMPOSED = {"objective": PICTURES, "small": SmallNetConfig(scene=False), "compositor_width": 8}


@pytest.fixture(scope="module")
def clips():
    source = HandPoses(6, num_frames=18, size=(SIZE, SIZE), fps=FPS, embodiments=("a",))
    config = ClipConfig(num_frames=NUM_FRAMES, height=SIZE, width=SIZE)
    return build_clip_dataset([source], config=config, reader=ActionConfig(pose_maps=PoseMapsConfig()))


DRAWING = ActionConfig(pose_maps=PoseMapsConfig())
LATE = ActionConfig(pose_maps=PoseMapsConfig(command_lag=0.3))


@pytest.fixture
def batch(clips):
    return collate_clips([clips[i] for i in range(4)])


@pytest.fixture
def make(clips):
    def make_model(**options) -> WorldModel:
        config = WorldModelConfig(**{"backbone": tiny_wan(), "actions": DRAWING, **COMPOSED, **options})
        contract = InputSpec(NUM_FRAMES, SIZE, SIZE, FPS, camera="head", latent_scale=4)
        vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1)
        return WorldModel.build(config, contract, clips.normalizer, vae=vae).eval()

    return make_model


def hand_at(x: float, y: float) -> PoseTrack:
    """The left hand's tool at this place of a picture of 1 m, the right hand out of sight."""
    poses = torch.zeros(1, 1, 16)
    poses[..., 0], poses[..., 1], poses[..., 3], poses[..., 11] = x - 0.12, y, 1.0, 1.0
    poses[..., 8] = 50.0
    return PoseTrack(poses, CAMERA.expand(1, 1, 3, 4))


@torch.no_grad()
def test_a_held_thing_goes_with_the_hand():
    compositor = Compositor((SIZE, SIZE), 8)
    shares = compositor.leave.bias.unflatten(0, (sum(HEADS), -1))[HEADS[0] : HEADS[0] + HEADS[1]]
    shares.copy_(torch.tensor([-30.0, -30, -30, 30, -30, -30, -30])[:, None].expand_as(shares))  # left hand's
    frame = torch.zeros(1, 3, SIZE, SIZE)
    frame[:, 0, 14:18, 14:18] = 1.0  # a red thing in the middle, where the tool is
    known = KnownFrame(frame, hand_at(0.0, 0.0))
    composed = compositor(torch.zeros(1, 1, 3, SIZE, SIZE), hand_at(0.25, -0.125), known).frames
    expected = torch.zeros(3, SIZE, SIZE)
    expected[0, 10:14, 22:26] = 1.0  # 8 pixels to the right, 4 up
    torch.testing.assert_close(composed[0, 0], expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_hand_that_comes_into_view_is_taken_from_the_nearest_reference():
    references = HandReferences(2, 2, (SIZE, SIZE))
    frames = torch.zeros(3, 3, SIZE, SIZE, dtype=torch.uint8)
    frames[0, 0, 14:18, 14:18] = 255  # a red hand in the middle, turned as asked for below
    frames[1, 1, 14:18, 14:18] = 255  # a green one, turned the other way
    turned = hand_at(0.0, 0.0).poses[0].clone()
    turned[:, 0], turned[:, 3], turned[:, 6] = 0.12, 0.0, 1.0
    poses = torch.cat([hand_at(0.0, 0.0).poses[0], turned, hand_at(5.0, 0.0).poses[0]])
    references.fill(1, frames, PoseTrack(poses, CAMERA.expand(3, 3, 4)))
    assert references.is_known.tolist() == [[False, False], [True, False]]  # no picture shows the right hand
    rows = PoseTrack(hand_at(0.25, -0.125).poses[0], CAMERA.expand(1, 3, 4))
    picture, _, is_known = references.nearest(torch.tensor([1]), rows, 0)
    assert is_known.all()
    assert torch.equal(picture[0], frames[0] / 255)
    compositor = Compositor((SIZE, SIZE), 8)
    shares = compositor.leave.bias.unflatten(0, (sum(HEADS), -1))[HEADS[0] : HEADS[0] + HEADS[1]]
    shares.copy_(torch.tensor([-30.0, -30, -30, -30, -30, 30, -30])[:, None].expand_as(shares))
    known = KnownFrame(torch.zeros(1, 3, SIZE, SIZE), hand_at(5.0, 0.0), torch.tensor([1]))
    composed = compositor(torch.zeros(1, 1, 3, SIZE, SIZE), hand_at(0.25, -0.125), known, references).frames
    expected = torch.zeros(3, SIZE, SIZE)
    expected[0, 10:14, 22:26] = 1.0
    torch.testing.assert_close(composed[0, 0], expected, atol=1e-4, rtol=0)
    grown = references.extended(3)
    assert torch.equal(grown.frames[:2], references.frames)
    assert not grown.is_known[2].any()


@torch.no_grad()
def test_untrained_it_mixes_all_sources_alike(batch):
    compositor = Compositor((SIZE, SIZE), 8)
    decoded, frame = torch.rand(4, 2, 3, SIZE, SIZE), torch.rand(4, 3, SIZE, SIZE)
    still = track_of(batch.extras, 0.0).rows(0, 1)
    track = map_tensors(still, lambda x: x.expand(-1, 2, *x.shape[2:]))
    composed = compositor(decoded, track, KnownFrame(frame, still)).frames
    # Hands that have not moved carry the given frame to where it is: six of seven sources are the same.
    torch.testing.assert_close(composed, (decoded + 6 * frame[:, None]) / 7, atol=1e-4, rtol=0)


def test_what_moved_is_sharpened_and_what_is_still_is_not():
    frames = torch.full((1, 2, 3, 8, 8), 0.2)
    frames[..., 4:] = 0.8  # an edge
    moved = torch.zeros(1, 2, 1, 8, 8)
    moved[:, 1] = 1.0
    composed = Composed(frames, moved)
    assert composed.sharpened(0.0) is frames
    still, sharp = composed.sharpened(0.4)[0]
    assert torch.equal(still, frames[0, 0])
    expected = frames[0, 1].clone()
    expected[..., 3], expected[..., 4] = (
        0.14,
        0.86,
    )  # a quarter of the step is lost to the blur
    torch.testing.assert_close(sharp, expected)
    assert composed.sharpened(9.0).amin() == 0.0  # shown frames stay in [0, 1]


def test_training_reaches_all_of_it(make, batch):
    model = make()
    torch.nn.init.normal_(model.compositor.leave.weight, std=0.1)
    losses = world_model_step(model.train(), batch, torch.Generator().manual_seed(0))
    losses.total.backward()
    assert all(p.grad is not None for p in model.compositor.parameters())
    assert model.compositor.enter.weight.grad.any()
    assert any(p.grad is not None and p.grad.any() for p in model.fdm.backbone.parameters())
    blind = dataclasses.replace(batch, frames=None, latents=model.encode(batch.frames))
    with pytest.raises(ValueError, match="learns from frames, got none"):
        world_model_step(model, blind, torch.Generator())


def test_it_can_be_trained_alone(make, batch):
    model = make(trained="compositor")
    model.freeze_untrained()
    losses = world_model_step(model.train(), batch, torch.Generator().manual_seed(0))
    losses.total.backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert reached == {f"compositor.{name}" for name, _ in model.compositor.named_parameters()}


def test_a_few_steps_make_pictures_better(make, batch):
    torch.manual_seed(0)
    model = make(trained="compositor", actions=LATE)
    model.freeze_untrained()
    optimizer = torch.optim.Adam(model.compositor.parameters(), lr=3e-3)

    def error(step):
        return world_model_step(model, batch, torch.Generator().manual_seed(step)).parts["pixels"]

    before = torch.stack([error(step) for step in range(4)]).mean()
    for step in range(30):
        optimizer.zero_grad()
        world_model_step(model, batch, torch.Generator().manual_seed(step)).total.backward()
        optimizer.step()
    assert torch.stack([error(step) for step in range(4)]).mean() < 0.7 * before


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_streams_make_the_frames_of_a_rollout(make, batch, clips, randomize, causal, tmp_path):
    objective = dataclasses.replace(PICTURES, forcing="prefix") if causal else PICTURES
    model = make(causal=causal, actions=LATE, objective=objective, hand_references=2)
    fill_references(model, model.hand_references, clips)
    assert model.hand_references.is_known.any()
    randomize(model.compositor)
    model.save_pretrained(tmp_path / "model")
    model = WorldModel.from_pretrained(tmp_path / "model")
    given, pipeline = batch.frames[:2, :1], RolloutPipeline(model)
    raw = model.normalizer.denormalize_tensor(batch.robot_actions[:2], "a")
    start = torch.zeros(2, 1, raw.shape[-1]) + raw[:, :1] / 2
    options = {"embodiment": "a", "camera": None, "num_inference_steps": 1, "start_action": start}
    model.contract = dataclasses.replace(model.contract, projection=tuple(CAMERA.flatten().tolist()))

    def seeds():
        return [torch.Generator().manual_seed(number) for number in range(2)]

    whole = pipeline(given, raw, generator=seeds(), **options).frames[:, 1:]
    stream = pipeline.open(given, generator=seeds(), **options)
    if causal:
        first = stream.step(raw[:, :4])
        fork = stream.fork()
        steps = torch.cat([first, stream.step(raw[:, 4:])], 1)
        torch.testing.assert_close(fork.step(raw[:, 4:]), steps[:, 4:])
    else:
        steps = stream.step(raw)
    torch.testing.assert_close(steps, whole, atol=1e-5, rtol=0)
    plain = pipeline(given, raw, generator=seeds(), **{**options, "start_action": None}).frames[:, 1:]
    assert (plain - whole).abs().max() > 1e-3  # the start is heard


@torch.no_grad()
def test_a_stream_goes_on_from_frames_that_are_not_sharpened(make, batch, randomize):
    model = make()
    randomize(model.compositor)
    raw = model.normalizer.denormalize_tensor(batch.robot_actions[:2], "a")
    model.contract = dataclasses.replace(model.contract, projection=tuple(CAMERA.flatten().tolist()))
    shown, recent = {}, {}
    for amount in (0.0, 1.0):
        model.config = dataclasses.replace(model.config, sharpen=amount)
        options = {"embodiment": "a", "generator": torch.Generator().manual_seed(0)}
        session = RolloutPipeline(model).open(batch.frames[:2, :1], **options)
        shown[amount], recent[amount] = session.step(raw), session.state.recent
    assert (shown[0.0] - shown[1.0]).abs().max() > 1e-3
    assert torch.equal(recent[0.0], recent[1.0])


def test_what_cannot_be_composed_is_refused(make):
    with pytest.raises(ValueError, match="compositor_width follows hand poses and learns from pictures"):
        WorldModelConfig(compositor_width=8)
    with pytest.raises(ValueError, match="trained=compositor, hand_references and sharpen need a compositor"):
        WorldModelConfig(trained="compositor")
    model = make()
    contract = InputSpec(NUM_FRAMES, 24, SIZE, FPS, camera="head", latent_scale=4)
    vae = CausalAutoencoder(height=24, width=SIZE, hidden=16, num_blocks=1)
    with pytest.raises(ValueError, match="multiples of 16 pixels, got 24x32"):
        WorldModel.build(model.config, contract, model.normalizer, vae=vae)
