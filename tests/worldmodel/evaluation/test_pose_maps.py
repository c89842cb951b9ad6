"""Evaluation and diagnostics of a model that draws poses: whatever it is told must be what is drawn."""

import dataclasses

import pytest
import torch

from tests.support.pose_sets import HandPoses
from tests.support.tiny_wan import tiny_wan
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.diagnostics.actions.diagnose import first_clips
from worldmodel.diagnostics.actions.world_model_channel import world_model_channel
from worldmodel.diagnostics.actions.world_model_diversity import latent_channel
from worldmodel.evaluation.controls import CONTROLS
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.rollouts.run import RolloutEvaluation, RolloutsConfig
from worldmodel.evaluation.sensitivity.run import SensitivityConfig, probe_model
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig, pose_columns
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.model import WorldModel

SIZE, NUM_FRAMES, FPS = 32, 9, 10.0
OPTIONS = {"num_frames": 24, "size": (SIZE, SIZE), "fps": FPS, "embodiments": ("a",)}


@pytest.fixture(scope="module")
def model():
    """Hears actions through their maps alone."""
    config = ClipConfig(num_frames=NUM_FRAMES, height=SIZE, width=SIZE)
    normalizer = build_clip_dataset([HandPoses(6, **OPTIONS)], config=config).normalizer
    model = WorldModel.build(
        WorldModelConfig(
            backbone=tiny_wan(),
            actions=ActionConfig(pose_maps=PoseMapsConfig()),
            objective=ObjectiveConfig(idm_weight=0.0),
        ),
        InputSpec(NUM_FRAMES, SIZE, SIZE, FPS, camera="head", latent_scale=4),
        normalizer,
        vae=CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1),
    )
    torch.nn.init.normal_(
        model.interface.pose_maps.project.weight, std=0.3, generator=torch.Generator().manual_seed(0)
    )
    return model.eval()


@pytest.fixture(scope="module")
def clips(model):
    source = HandPoses(4, **OPTIONS)
    return held_out_clips(source, model.contract, model.normalizer, HeldOutConfig(split="all"))


def test_every_control_draws_its_own_poses(model, clips):
    config = RolloutsConfig(num_inference_steps=1, videos=0)
    evaluation = RolloutEvaluation(model, clips, config)
    _, videos = evaluation.evaluate(0)
    for name in CONTROLS:
        assert (videos[name] - videos["true"]).abs().max() > 1e-3, name
    told = evaluation.predictor.commands(clips[0])
    rows = evaluation.predictor._extras(told[None], clips[0])
    episode = clips.index.open(clips.places[0][0])
    start = clips[0].start
    actions = torch.from_numpy(episode.robot_actions[start : start + NUM_FRAMES - 1])
    raw = pose_columns(actions, episode.action_names)
    # What the robot was told, also where it leaves the range of the scales.
    torch.testing.assert_close(rows["poses"][0, :, -1], raw, atol=1e-5, rtol=1e-4)
    assert told.abs().max() > 1


def test_every_dimension_and_the_gain_reach_the_maps(model, clips):
    config = SensitivityConfig(num_inference_steps=1, response_clips=1, scales=(0.5, 1.0))
    probe, predictor = probe_model(model, config, ("a",))
    clip = clips[0]
    told = predictor.commands(clip), predictor.command_names(clip)
    record, _ = probe.measure(clip, *told, None, seed=0, with_response=True)
    assert all(change > 0 for change in record["response"].values())
    gained, _ = probe_model(model, dataclasses.replace(config, action_gain=50.0), ("a",))
    call = clip.frames[None, :1], told[0][None], NUM_FRAMES, 0, clip
    assert not torch.equal(gained.predict(*call), probe.predict(*call))


def test_a_clip_whose_camera_is_not_known_is_refused(model):
    blind = HandPoses(4, None, **OPTIONS)
    clips = held_out_clips(blind, model.contract, model.normalizer, HeldOutConfig(split="all"))
    evaluation = RolloutEvaluation(model, clips, RolloutsConfig(num_inference_steps=1))
    with pytest.raises(ValueError, match="camera 'head' are not known, the data describe no camera"):
        evaluation.evaluate(0)


@torch.no_grad()
def test_the_action_channel_is_diagnosed_through_the_maps(model):
    batch, view = first_clips(model, HandPoses(4, **OPTIONS), 2)
    given = batch.frames[:, :1]
    generate = world_model_channel(model, given, num_inference_steps=1, view=view)
    noise = torch.randn(2, model.contract.latent_channels, *model.contract.latent_grid)
    nudged = batch.robot_actions.clone()
    nudged[:, 4, 0] += 0.5  # leads to frame 5, which latent frame 2 draws
    change = (generate(noise, nudged) - generate(noise, batch.robot_actions)).abs()
    assert change.max() > 1e-3
    first = dataclasses.replace(view, transitions=view.transitions[:1])
    sequences = torch.cat([batch.robot_actions[:1], nudged[:1]])
    channel = latent_channel(model, given[:1], sequences, first)
    one, other = (channel(noise[:1].double(), choice[None, None]) for choice in torch.eye(2).double())
    assert (one - other).abs().max() > 1e-4
