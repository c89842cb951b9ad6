import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.nn.functional import pixel_shuffle

from tests.support.pose_sets import HEAD, HandPoses
from tests.support.tiny_wan import tiny_wan
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset, collate_clips
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.pose_maps import (
    DRAWN,
    HAND_POINTS,
    MAP_CHANNELS,
    HandDrawing,
    PoseMaps,
    PoseMapsConfig,
    hand_points,
)
from worldmodel.models.actions.protocol import PathShape
from worldmodel.models.backbone import WanConfig
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.training.model_data import still_projection
from worldmodel.types import Actions, Extras, map_tensors

SIZE, NUM_FRAMES, FPS = 32, 9, 10.0
DRAWING = ActionConfig(pose_maps=PoseMapsConfig())
WITHOUT_JUDGE = ObjectiveConfig(idm_weight=0.0, action_dropout=0.5)
STEPS = {"num_inference_steps": 1}


@pytest.fixture(scope="module")
def clips():
    source = HandPoses(6, num_frames=18, size=(SIZE, SIZE), fps=FPS, embodiments=("a",))
    config = ClipConfig(num_frames=NUM_FRAMES, height=SIZE, width=SIZE)
    return build_clip_dataset([source], config=config, reader=ActionConfig(pose_maps=PoseMapsConfig()))


@pytest.fixture
def batch(clips):
    return collate_clips([clips[i] for i in range(3)])


@pytest.fixture
def make(clips, randomize):
    """A tiny model that draws poses, untrained or with weights that do something."""

    def make_model(*, trained=False, **options) -> WorldModel:
        defaults = {"backbone": tiny_wan(), "objective": WITHOUT_JUDGE, "actions": DRAWING}
        contract = InputSpec(NUM_FRAMES, SIZE, SIZE, FPS, camera="head", latent_scale=4)
        vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1)
        model = WorldModel.build(
            WorldModelConfig(**{**defaults, **options}), contract, clips.normalizer, vae=vae
        )
        if trained:
            for part in model.parts().values():
                randomize(part)
        return model.eval()

    return make_model


def moved(extras: Extras, by: float) -> Extras:
    poses = extras["poses"].clone()
    poses[..., [0, 8]] += by
    return {**extras, "poses": poses}


def test_a_blob_is_where_its_point_is():
    maps = HandDrawing((8, 12), samples=2, sigma=0.7)
    points = torch.tensor([[[[0.3, 0.6, 0.5, 0.8]]]])
    drawn = maps.draw(points)[0, 0, 0]
    x, y = (torch.arange(24) + 0.5) / 2, (torch.arange(16) + 0.5) / 2  # in latents
    expected = 0.8 * torch.exp(-((x - 0.3 * 12) ** 2 + (y[:, None] - 0.6 * 8) ** 2) / (2 * 0.7**2))
    torch.testing.assert_close(drawn, expected)


def test_every_transition_has_its_channels_in_its_latent_frame(batch):
    maps, extras = HandDrawing((8, 8)), batch.extras
    drawn = maps(extras)
    assert drawn.shape == (3, 3, MAP_CHANNELS, 8, 8)
    assert not drawn[:, 0].any()
    # Unfolded, the channels of a latent frame are the drawings of its four transitions, one after another.
    fine = pixel_shuffle(drawn.flatten(0, 1), 2).unflatten(0, (3, 3))
    points = hand_points(extras["poses"][:, :, -1], extras["projections"])
    left = len(HAND_POINTS) + 1
    for transition in (0, 5):
        own = fine[:, 1 + transition // 4, (transition % 4) * DRAWN :][:, :DRAWN]
        alone = maps.draw(points[:, transition : transition + 1])[:, 0]
        torch.testing.assert_close(own[:, : left - 1], alone[:, : left - 1])
        torch.testing.assert_close(own[:, left:-1], alone[:, left - 1 :])
        depth = points[:, transition, HAND_POINTS.index("tool"), 2]
        torch.testing.assert_close(own[:, left - 1], alone[:, 1] * depth[:, None, None])


def test_missing_actions_are_not_drawn(batch):
    missing = torch.tensor([[False] * 3, [True] * 3, [False, False, True]])
    drawn = HandDrawing((8, 8))(batch.extras, missing).flatten(2).any(2)
    assert drawn.tolist() == [[False, True, True], [False, False, False], [False, True, False]]


@torch.no_grad()
@pytest.mark.parametrize("prediction", ["velocity", "clean"])
def test_at_first_the_model_is_the_one_without_maps_bit_for_bit(make, batch, prediction):
    width = 8 if prediction == "clean" else 0
    with_maps = make(small=SmallNetConfig(prediction, scene=False, refiner_width=width))
    without = make(actions=ActionConfig(), small=SmallNetConfig(prediction, scene=False))
    noisy = torch.randn(3, 16, 3, 8, 8)
    answers = []
    for model in (with_maps, without):
        embedding = model.interface(batch.robot_actions, batch.extras)
        assert (embedding.places is not None) == (model is with_maps)
        answers.append(model.fdm(noisy, torch.ones(3, 3), embedding, model.text_context()).velocity)
    assert torch.equal(*answers)
    # And both are Wan itself, called with per-token timesteps.
    assert set(with_maps.fdm.backbone.state_dict()) == set(without.fdm.backbone.state_dict())


def test_training_reaches_the_maps(make, batch):
    options = {"small": SmallNetConfig(scene=False, refiner_width=8)}
    model = make(trained=True, mcl=ActionMclConfig(mode="finite_difference"), **options)
    losses = world_model_step(model, batch, torch.Generator().manual_seed(0))
    losses.total.backward()
    for part in (model.interface.pose_maps, model.small.refiner):
        assert all(p.grad is not None and p.grad.any() for p in part.parameters())
    blind = dataclasses.replace(batch, extras={})
    with pytest.raises(ValueError, match="action paths need clips with poses, projections, got none"):
        world_model_step(model, blind, torch.Generator())


@torch.no_grad()
def test_a_model_draws_the_poses_it_is_told(make, batch, tmp_path):
    model = make(trained=True, small=SmallNetConfig(scene=False, refiner_width=8))
    model.save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model/contract.json").read_text())["extras"] == {
        "poses": [3, 16],
        "projections": [3, 4],
    }
    assert "hand poses drawn into the picture" in (tmp_path / "model/README.md").read_text()
    loaded = WorldModel.from_pretrained(tmp_path / "model")
    given, extras = batch.frames[:, :1], batch.extras

    def video(one, extras):
        seeds = [torch.Generator().manual_seed(0) for _ in given]
        told = Actions(batch.robot_actions, extras=extras)
        return RolloutPipeline(one).rollout(given, told, generator=seeds, **STEPS).frames

    true = video(model, extras)
    assert torch.equal(video(loaded, extras), true)
    assert (video(model, moved(extras, 0.1)) - true).abs().max() > 1e-3
    # Out of the picture, there is nothing to draw.
    assert torch.equal(video(model, moved(extras, 9.0)), video(model, moved(extras, -9.0)))


@torch.no_grad()
def test_the_pipeline_makes_rows_of_raw_actions_and_cameras(make, clips, batch):
    model = make(trained=True)
    pipeline, given = RolloutPipeline(model), batch.frames[:, :1]
    call = {"embodiment": "a", **STEPS}
    raw = batch.extras["poses"][:, :, -1]

    def seeds():
        return [torch.Generator().manual_seed(0) for _ in given]

    made = pipeline(given, raw, camera=HEAD, generator=seeds(), **call).frames
    known = Actions(batch.robot_actions, extras=batch.extras)
    expected = pipeline.rollout(given, known, generator=seeds(), **STEPS)
    torch.testing.assert_close(made, expected.frames)
    still = dataclasses.replace(HEAD, extrinsics=HEAD.extrinsics[None].repeat(NUM_FRAMES, 0))
    one_each = pipeline(given, raw, camera=[HEAD, still, HEAD], generator=seeds(), **call).frames
    torch.testing.assert_close(one_each, made)
    elsewhere = still.extrinsics.copy()
    elsewhere[1:, 0, 3] += 0.1  # the camera of frame 0 sees no pose
    other = dataclasses.replace(still, extrinsics=elsewhere)
    assert (pipeline(given, raw, camera=other, generator=seeds(), **call).frames - made).abs().max() > 1e-3
    unknown = pipeline(given, num_frames=NUM_FRAMES, generator=seeds(), **STEPS).frames
    assert (unknown - made).abs().max() > 1e-3
    with pytest.raises(ValueError, match=r"pass camera=episode\.cameras\[name\]"):
        pipeline(given, raw, **call)
    with pytest.raises(ValueError, match="one camera for all samples or 3, one for each, got 2"):
        pipeline(given, raw, camera=[HEAD, HEAD], **call)


@torch.no_grad()
def test_the_last_raw_command_is_held_where_a_video_ends_inside_a_latent_frame(make, batch):
    """What is held has no lag: the arms arrive."""
    actions = ActionConfig(pose_maps=PoseMapsConfig(command_lag=0.5))
    pipeline, given = RolloutPipeline(make(trained=True, actions=actions)), batch.frames[:, :1]
    raw = batch.extras["poses"][:, :6, -1]

    def video(commands):
        options = {"embodiment": "a", "camera": HEAD, **STEPS}
        return pipeline(given, commands, generator=torch.Generator().manual_seed(0), **options).frames

    held = video(torch.cat([raw, raw[:, -1:].expand(-1, 2, -1)], 1))
    assert torch.equal(video(raw), held[:, :7])


@torch.no_grad()
def test_a_session_takes_the_camera_of_every_step(make, batch):
    pipeline, given = RolloutPipeline(make(trained=True)), batch.frames[:, :1]
    raw = batch.extras["poses"][:, :, -1]
    elsewhere = HEAD.extrinsics[None].repeat(NUM_FRAMES, 0)
    elsewhere[:, 0, 3] += np.linspace(0, 0.2, NUM_FRAMES)
    moving = dataclasses.replace(HEAD, extrinsics=elsewhere)
    options = {"embodiment": "a", **STEPS}

    def frames(camera, parts):
        stream = pipeline.open(given, camera=camera, generator=torch.Generator().manual_seed(0), **options)
        return torch.cat([stream.step(raw[:, at : at + 4], camera=part) for at, part in parts], 1)

    parts = [(at, dataclasses.replace(HEAD, extrinsics=elsewhere[at : at + 5])) for at in (0, 4)]
    known = frames(moving, [(0, None), (4, None)])
    assert torch.equal(frames(None, parts), known)
    assert (frames(HEAD, [(0, None), (4, None)]) - known).abs().max() > 1e-3


@torch.no_grad()
def test_a_camera_that_never_moved_need_not_be_brought(make, clips, batch):
    model = make(trained=True)
    model.contract = dataclasses.replace(model.contract, projection=still_projection(clips))
    pipeline, given, raw = RolloutPipeline(model), batch.frames[:, :1], batch.extras["poses"][:, :, -1]
    frames = [
        pipeline(given, raw, camera=camera, embodiment="a", generator=torch.Generator(), **STEPS).frames
        for camera in (HEAD, None)
    ]
    assert torch.allclose(*frames, atol=1e-5)
    with pytest.raises(ValueError, match="12 finite numbers"):
        dataclasses.replace(model.contract, projection=(1.0, 2.0))


def test_long_rollouts_draw_every_chunk(make, batch):
    """A video of two chunks is the first chunk, and a second one behind its last frame."""
    model = make(trained=True)
    pipeline, given = RolloutPipeline(model), batch.frames[:1, :1] / 255
    told = Actions(batch.robot_actions, extras=batch.extras)
    long = map_tensors(told, lambda part: torch.cat([part[:1], part[1:2]], 1))

    def make_video(actions):
        seeds = [torch.Generator().manual_seed(0)]
        return pipeline.rollout(given, actions, generator=seeds, **STEPS).frames

    first, both = make_video(long[:8]), make_video(long)
    torch.testing.assert_close(both[:, :NUM_FRAMES], first)
    held = dataclasses.replace(long, extras=long[:8].pad_last(16).extras)
    other = make_video(held)
    assert (both - other)[:, :NUM_FRAMES].abs().max() < 1e-6
    assert (both - other)[:, NUM_FRAMES:].abs().max() > 1e-3


def test_a_backbone_brings_its_maps_to_a_model_that_draws_and_its_refiner_to_any(make, tmp_path):
    options = {"small": SmallNetConfig(scene=False, refiner_width=8)}
    trained = make(trained=True, **options)
    trained.save_pretrained(tmp_path)
    again = make(pretrained=str(tmp_path), **options)
    for part in (lambda model: model.interface.pose_maps, lambda model: model.small.refiner):
        pairs = zip(part(trained).parameters(), part(again).parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    plain = make(pretrained=str(tmp_path), actions=ActionConfig(), **options)
    assert "pose_maps" not in plain.interface
    assert torch.equal(plain.small.refiner.enter.weight, trained.small.refiner.enter.weight)
    plain.save_pretrained(tmp_path / "plain")
    drawing = make(pretrained=str(tmp_path / "plain"), **options)
    assert not drawing.small.refiner.poses.weight.any()


def test_what_cannot_be_drawn_is_refused():
    for regime in ("lacg", "no_action"):
        with pytest.raises(ValueError, match=f"pose_maps works with regime acg, got {regime}: set actions"):
            WorldModelConfig(actions=DRAWING, regime=regime)


def test_the_published_backbone_takes_maps_of_its_own_size():
    shape = WanConfig()
    width = shape.num_heads * shape.head_dim
    sizes = PathShape(14, width, shape.num_layers, shape.num_heads, shape.patch_size[1:], grid=(30, 40))
    path = PoseMaps(sizes)
    assert path.project.weight.shape == (1536, 224, 1, 2, 2)
    with torch.no_grad():
        assert path.project(torch.rand(1, 3, 224, 30, 40)).shape == (1, 3, 15 * 20, width)
