import numpy as np
import pytest
import torch

from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.whole_clip import embed_clip
from worldmodel.types import Actions

REGIMES = ("no_action", "acg", "lacg")
STEPS = 2


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


@pytest.fixture
def trained(make_world_model, randomize):
    def make(**options):
        model = make_world_model(**options)
        for part in model.parts().values():
            randomize(part)
        return model

    return make


@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("regime", REGIMES)
def test_batch_equals_singles_over_several_chunks(trained, batch, regime, history):
    pipeline = RolloutPipeline(trained(regime=regime, history=history, small=SmallNetConfig("velocity")))
    given, actions = batch.frames[:, : 4 * history - 3], batch.robot_actions.repeat(1, 3, 1)[:, :30]
    options = {"num_inference_steps": STEPS}
    together = pipeline.rollout(given, Actions(actions), generator=seeds(0, 1, 2, 3), **options)
    assert together.frames.shape == (4, 31, 3, 32, 32)
    assert together.num_history == given.shape[1]
    assert torch.equal(together.frames[:, : given.shape[1]], given / 255)
    for i in range(4):
        alone = pipeline.rollout(given[i : i + 1], Actions(actions[i : i + 1]), generator=seeds(i), **options)
        assert torch.allclose(alone.frames[0], together.frames[i], atol=2e-5)
    different = (together.frames[0] - together.frames[1]).abs().max()
    assert different > 0.01


@pytest.mark.parametrize("regime", ["acg", "lacg"])
def test_actions_change_the_video_and_only_after_they_happen_in_later_chunks(trained, batch, regime):
    pipeline = RolloutPipeline(trained(regime=regime))
    given, actions = batch.frames[:1, :1], batch.robot_actions[:1].repeat(1, 2, 1)
    changed = actions.clone()
    changed[:, 12:] *= -1  # the second chunk begins with frame 13, led to by action 12
    videos = [
        pipeline.rollout(given, Actions(a), generator=seeds(0), num_inference_steps=STEPS).frames
        for a in (actions, changed)
    ]
    difference = (videos[0] - videos[1]).abs().amax((0, 2, 3, 4))
    assert difference[:13].max() == 0
    assert difference[13:].max() > 1e-4


def test_raw_commands_are_scaled_as_clips_are(trained, batch, clips):
    pipeline = RolloutPipeline(trained(regime="acg"))
    names = [clips.normalizer.embodiments[i] for i in batch.embodiment.tolist()]
    raw = np.stack(
        [
            clips.normalizer.denormalize(row, name)
            for row, name in zip(batch.robot_actions, names, strict=True)
        ]
    )
    given = batch.frames[:, :1]
    expected = pipeline.rollout(
        given, Actions(batch.robot_actions), generator=seeds(0, 1, 2, 3), num_inference_steps=STEPS
    )
    for commands in (raw, torch.from_numpy(raw)):
        got = pipeline(
            given,
            commands,
            embodiment=names,
            generator=seeds(0, 1, 2, 3),
            num_inference_steps=STEPS,
        )
        assert torch.allclose(got.frames, expected.frames, atol=1e-5)


def test_what_does_not_match_the_model_is_refused_with_what_was_expected(trained, batch):
    pipeline = RolloutPipeline(trained(regime="acg"))
    frames, actions = batch.frames[:, :1], np.zeros((4, 12, 6))
    refusals = {
        "unknown embodiment 'c'; statistics exist for a, b": {"embodiment": "c"},
        "one embodiment for all samples or 4, one for each, of a, b; got": {"embodiment": ("a", "b")},
        "expected 6 dimensions .*, got 5": {"robot_actions": actions[..., :5]},
        "expected frames of 32x32 pixels, got 16x32": {"frames": frames[..., :16, :]},
        "12 actions make 13 frames, not 9": {"num_frames": 9},
        "driven by robot actions or by latent actions, got both": {"latent_actions": torch.zeros(4, 12, 32)},
        "expected 4 generators, one per sample, got 2": {"generator": seeds(0, 1)},
    }
    for message, change in refusals.items():
        call = {"frames": frames, "robot_actions": actions, "embodiment": "a", **change}
        with pytest.raises(ValueError, match=message):
            pipeline(**call, num_inference_steps=1)
    with pytest.raises(ValueError, match="without actions, num_frames must say"):
        pipeline(frames)
    with pytest.raises(ValueError, match="nothing to generate: 1 frames are given of a video of 1"):
        pipeline(frames, num_frames=1)
    with pytest.raises(ValueError, match="latent actions need a model of regime lacg, this one is acg"):
        pipeline(frames, latent_actions=torch.zeros(4, 12, 32))
    with pytest.raises(ValueError, match="expected the 5 frames of the model's history or more, got 1"):
        RolloutPipeline(trained(regime="acg", history=2))(frames, actions, embodiment="a")
    with pytest.raises(ValueError, match="expected latent actions of 32 dimensions, got 8"):
        RolloutPipeline(trained(regime="lacg"))(frames, latent_actions=torch.zeros(4, 12, 8))


def test_latent_actions_can_be_copied_from_another_episode(trained, batch):
    model = trained(regime="lacg")
    pipeline = RolloutPipeline(model)
    source = model.infer_latent_actions(batch.frames[1:2])
    options = {"num_inference_steps": STEPS}
    own = model.infer_latent_actions(batch.frames[:1])
    videos = [
        pipeline(batch.frames[:1, :1], latent_actions=z, generator=seeds(0), **options).frames
        for z in (own, source)
    ]
    assert (videos[0] - videos[1]).abs().max() > 1e-4


def test_unknown_actions_get_the_null_embedding(trained, batch):
    model = trained(regime="acg")
    recent = batch.frames[:, :1] / 255
    embedding, _ = embed_clip(model, recent, Actions(), Actions())
    assert torch.equal(embedding.frames, model.interface.adaln.null.expand(4, 4, -1))
    known, _ = embed_clip(model, recent, Actions(), Actions(batch.robot_actions))
    assert torch.equal(known.frames, model.interface(batch.robot_actions).frames)


def test_unknown_past_actions_leave_the_others_where_they_are(trained, batch):
    # A session that went on without actions, and then gets some: they were taken for the past ones.
    model, recent = trained(regime="acg", history=2), batch.frames[:, :5] / 255
    embedding, known = embed_clip(model, recent, Actions(), Actions(batch.robot_actions[:, 4:]))
    expected = model.interface(batch.robot_actions).frames
    assert torch.equal(embedding.frames[:, 2:], expected[:, 2:])
    assert torch.equal(embedding.frames[:, :2], model.interface.adaln.null.expand(4, 2, -1))
    assert torch.equal(known.robot[:, 4:], batch.robot_actions[:, 4:])


def test_controller_drives_from_the_last_known_frame_of_each_chunk(trained, batch):
    model = trained(regime="lacg", history=2)
    recent, known = batch.frames[:, :5] / 255, Actions(batch.robot_actions)
    first, driven = embed_clip(model, recent, known[:4], known[4:])
    past = model.infer_latent_actions(recent)
    ahead = model.control(batch.robot_actions[:, 4:], recent[:, -1])
    expected = model.interface(torch.cat([past, ahead], 1))
    assert torch.allclose(first.frames, expected.frames, atol=1e-6)
    # The next clip starts from frame 8: its past is what drove frames 9 to 12, not what frames look like.
    second, _ = embed_clip(model, recent, driven[8:], known[:8])
    following = model.control(batch.robot_actions[:, :8], recent[:, -1])
    expected = model.interface(torch.cat([ahead[:, 4:], following], 1))
    assert torch.allclose(second.frames, expected.frames, atol=1e-6)


def test_last_action_is_held_to_fill_the_last_chunk(trained, batch):
    pipeline = RolloutPipeline(trained(regime="acg"))
    given, actions = batch.frames[:1, :1], batch.robot_actions[:1]
    held = torch.cat([actions[:, :6], actions[:, 5:6].expand(-1, 6, -1)], 1)
    options = {"num_inference_steps": STEPS}
    short = pipeline.rollout(given, Actions(actions[:, :6]), generator=seeds(0), **options)
    full = pipeline.rollout(given, Actions(held), generator=seeds(0), **options)
    assert short.frames.shape[1] == 7
    assert torch.equal(short.frames, full.frames[:, :7])


def test_training_mode_comes_back(trained, batch):
    model = trained(regime="acg").train()
    RolloutPipeline(model).rollout(batch.frames[:1, :1], num_frames=5, num_inference_steps=1)
    assert model.training
    assert not model.vae.training
