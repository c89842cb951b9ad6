from dataclasses import is_dataclass

import numpy as np
import pytest
import torch

from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.start_state import StartStateConfig
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions, map_tensors

STEPS = 2
START = ActionConfig(start_state=StartStateConfig(hidden=16))


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


@pytest.fixture
def raw(batch, clips):
    """Commands of the batch in the robots' own units, and whose they are."""
    names = [clips.normalizer.embodiments[i] for i in batch.embodiment.tolist()]
    rows = zip(batch.robot_actions, names, strict=True)
    return np.stack([clips.normalizer.denormalize(row, name) for row, name in rows]), names


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("regime", ["acg", "lacg"])
def test_steps_are_the_rollout(trained, batch, raw, regime, history, causal):
    # A whole-clip lacg session with a history once inferred from frames what it had chosen itself.
    pipeline, (actions, names) = RolloutPipeline(trained(regime=regime, history=history, causal=causal)), raw
    given, known = batch.frames[:, : 4 * history - 3], 4 * (history - 1)
    actions = np.concatenate([actions, actions, actions[:, :4]], 1)[:, : 24 - known]
    options = {"embodiment": names, "num_inference_steps": STEPS}
    expected = pipeline(given, actions, generator=seeds(0, 1, 2, 3), **options).frames
    past = actions[:, :known] if known else None
    stream = pipeline.open(given, past, generator=seeds(0, 1, 2, 3), **options)
    made = [stream.step(part) for part in np.split(actions[:, known:], [stream.block], 1)]
    assert torch.equal(torch.cat(made, 1), expected[:, 1 + known :])
    assert stream.num_frames == expected.shape[1]


@pytest.mark.parametrize("causal", [False, True])
def test_latent_steps_are_the_rollout(trained, batch, causal):
    pipeline = RolloutPipeline(trained(regime="lacg", history=2, causal=causal))
    z, given = torch.randn(4, 20, 32, generator=torch.Generator().manual_seed(0)), batch.frames[:, :5]
    z[:, :4] = pipeline.model.infer_latent_actions(given)
    expected = pipeline(given, latent_actions=z, generator=seeds(0, 1, 2, 3)).frames
    stream = pipeline.open(given, generator=seeds(0, 1, 2, 3))
    made = [stream.step(latent_actions=part) for part in (z[:, 4:12], z[:, 12:])]
    torch.testing.assert_close(torch.cat(made, 1), expected[:, 5:], atol=2e-5, rtol=0)


def test_a_fork_shares_the_frozen_state(trained, batch, raw):
    pipeline, (actions, names) = RolloutPipeline(trained(regime="acg", causal=True)), raw
    stream = pipeline.open(batch.frames[:, :1], embodiment=names, generator=seeds(0, 1, 2, 3))
    stream.step(actions[:, :4])
    before, fork, copies = stream.state, stream.fork(), stream.fork(2)
    assert fork.state is before
    kept = []
    map_tensors(before, lambda part: kept.append(part.clone()) or part)
    fork.step(actions[:, 4:8])
    assert stream.state is before
    now = []
    map_tensors(before, lambda part: now.append(part) or part)
    assert all(torch.equal(*pair) for pair in zip(kept, now, strict=True))
    twice = []
    map_tensors(copies.state, lambda part: twice.append(part) or part)
    assert all(torch.equal(two[::2], one) for one, two in zip(now, twice, strict=True))


def test_everything_that_a_session_holds_is_frozen(trained, batch, raw):
    def unfrozen(tree):
        parts = tree if isinstance(tree, tuple | list) else vars(tree).values() if is_dataclass(tree) else ()
        own = {type(tree)} if is_dataclass(tree) and not tree.__dataclass_params__.frozen else set()
        return own.union(*(unfrozen(part) for part in parts))

    for causal in (False, True):
        stream = RolloutPipeline(trained(causal=causal)).open(batch.frames[:, :1], embodiment=raw[1])
        stream.step(raw[0][:, :4])
        assert not unfrozen([part for name, part in vars(stream).items() if name != "model"])


def test_advance_forgets_the_last_raw_command(trained, batch, raw):
    stream = RolloutPipeline(trained(regime="acg")).open(batch.frames[:, :1], embodiment=raw[1])
    stream.step(raw[0][:, :4])
    assert torch.equal(stream.state.command, torch.from_numpy(raw[0][:, 2:4]))
    stream.advance(Actions(batch.robot_actions[:, 4:8]), 4)
    assert stream.state.command is None


def test_half_precision_around_a_step_leaves_frames_in_single(trained, batch, raw):
    # As on a GPU, where a session runs in bfloat16.
    pipeline, (actions, names) = RolloutPipeline(trained(regime="acg", causal=True)), raw
    options = {"embodiment": names, "num_inference_steps": STEPS}
    made = []
    for is_half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            stream = pipeline.open(batch.frames[:, :1], generator=seeds(0, 1, 2, 3), **options)
            made.append(torch.cat([stream.step(actions[:, :8]), stream.step(actions[:, 8:])], 1))
    assert made[1].dtype == torch.float32
    assert 0 < (made[0] - made[1]).abs().mean() < 0.02


def test_a_history_of_several_frames_takes_what_led_to_them(trained, batch, raw):
    pipeline, (actions, names) = RolloutPipeline(trained(regime="acg", history=2)), raw
    options = {"embodiment": names, "num_inference_steps": STEPS}
    expected = pipeline(batch.frames[:, :5], actions, generator=seeds(0, 1, 2, 3), **options).frames
    stream = pipeline.open(batch.frames[:, :5], actions[:, :4], generator=seeds(0, 1, 2, 3), **options)
    assert torch.equal(stream.step(actions[:, 4:]), expected[:, 5:])
    again = stream.step(actions[:, :4])
    changed = RolloutPipeline(pipeline.model).open(batch.frames[:, :5], -actions[:, :4], **options)
    assert again.shape == changed.step(actions[:, :4]).shape == (4, 4, 3, 32, 32)
    with pytest.raises(ValueError, match="pass past_actions"):
        pipeline.open(batch.frames[:, :5], **options)
    with pytest.raises(ValueError, match="expected 4 past_actions between 5 frames, got 3"):
        pipeline.open(batch.frames[:, :5], actions[:, :3], **options)


def test_forks_go_their_own_way_from_the_same_noise(trained, batch, raw):
    pipeline, (actions, names) = RolloutPipeline(trained(regime="acg")), raw
    stream = pipeline.open(batch.frames[:, :1], embodiment=names, generator=seeds(0, 1, 2, 3))
    stream.step(actions[:, :4])
    other, four = stream.fork(), stream.fork(3)
    expected = stream.step(actions[:, 4:8])
    assert other.num_frames == 5
    assert not torch.equal(other.step(-actions[:, 4:8]), expected)
    assert torch.equal(stream.fork().step(actions[:, 8:]), stream.step(actions[:, 8:]))
    copies = four.step(np.repeat(actions[:, 4:8], 3, 0))
    assert torch.allclose(copies, expected.repeat_interleave(3, 0), atol=2e-5)


def test_a_sample_does_not_depend_on_its_batch(trained, batch, raw):
    pipeline, (actions, names) = RolloutPipeline(trained(regime="acg")), raw
    together = pipeline.open(batch.frames[:, :1], embodiment=names, generator=seeds(0, 1, 2, 3))
    alone = pipeline.open(batch.frames[2:3, :1], embodiment=names[2], generator=seeds(2))
    for start in (0, 4):
        expected = together.step(actions[:, start : start + 4])[2:3]
        assert torch.allclose(alone.step(actions[2:3, start : start + 4]), expected, atol=2e-5)


@pytest.mark.parametrize("regime", ["no_action", "acg", "lacg"])
def test_steps_without_known_actions(trained, batch, regime):
    stream = RolloutPipeline(trained(regime=regime)).open(batch.frames[:, :1], generator=seeds(0, 1, 2, 3))
    assert stream.step().shape == (4, 4, 3, 32, 32)
    assert stream.step(num_actions=8).shape == (4, 8, 3, 32, 32)


def test_latent_actions_drive_a_latent_action_model(trained, batch):
    model = trained(regime="lacg")
    drive = model.infer_latent_actions(batch.frames)
    stream, other = (
        RolloutPipeline(model).open(batch.frames[:, :1], generator=seeds(0, 1, 2, 3)) for _ in range(2)
    )
    made = stream.step(latent_actions=drive[:, :4])
    assert torch.equal(other.advance(Actions(latent=drive[:, :4]), 4), made)


def test_a_session_leaves_the_model_as_it_was(trained, batch, raw):
    model, (actions, names) = trained(regime="acg"), raw
    model.train()
    RolloutPipeline(model).open(batch.frames[:, :1], embodiment=names).step(actions[:, :4])
    assert model.training
    assert not model.vae.training


def test_steps_that_do_not_fit_are_refused(trained, batch, raw):
    pipeline, (actions, names) = RolloutPipeline(trained(regime="acg")), raw
    stream = pipeline.open(batch.frames[:, :1], embodiment=names)
    with pytest.raises(ValueError, match=r"takes 4 actions or a multiple .* got 3"):
        stream.step(actions[:, :3])
    with pytest.raises(ValueError, match=r"actions of 4 samples, .* got 1"):
        stream.step(actions[:1, :4])
    with pytest.raises(ValueError, match="5 frames of the model's history or more, got 1"):
        RolloutPipeline(trained(regime="no_action", history=2)).open(batch.frames[:, :1])
    with pytest.raises(ValueError, match="latent actions need a model of regime lacg"):
        stream.step(latent_actions=torch.zeros(4, 4, 3))


@pytest.mark.parametrize(
    ("rows", "num_actions", "message"),
    [
        (np.s_[:, :3], 3, r"takes 4 actions or a multiple .* got 3"),
        (np.s_[:1, :4], 4, r"actions of 4 samples, .* got 1"),
        (np.s_[:, :4], 8, "expected 8 actions, got 4"),
    ],
)
def test_advance_refuses_what_step_refuses(trained, batch, raw, rows, num_actions, message):
    stream = RolloutPipeline(trained(regime="acg")).open(batch.frames[:, :1], embodiment=raw[1])
    with pytest.raises(ValueError, match=message):
        stream.advance(Actions(batch.robot_actions[rows]), num_actions)
    assert stream.num_frames == 1


def test_a_measured_state_is_given_once_and_read_by_every_step_and_fork(trained, batch, raw):
    pipeline, (actions, names) = RolloutPipeline(trained(actions=START, causal=True)), raw
    given, states = batch.frames[:, :1], np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)

    def made(start_state):
        options = {"embodiment": names, "num_inference_steps": STEPS, "start_state": start_state}
        video = pipeline(given, actions[:, :8], generator=seeds(0, 1, 2, 3), **options).frames
        stream = pipeline.open(given, generator=seeds(0, 1, 2, 3), **options)
        first = stream.step(actions[:, :4])
        steps = torch.cat([first, stream.fork().step(actions[:, 4:8])], 1)
        assert torch.equal(steps, video[:, 1:])
        return video

    known, unknown = made(states), made(None)
    assert (known - unknown).abs().amax((1, 2, 3, 4)).gt(0).all()
    mixed = made([states[0], None, torch.from_numpy(states[2]), None])
    assert torch.equal(mixed[::2], known[::2])
    assert torch.equal(mixed[1::2], unknown[1::2])
    stream = pipeline.open(given[:2], embodiment=names[:2], start_state=states[:2]).fork(2)
    assert [one[0].item() for one in stream.start_states] == [0, 0, states[1, 0], states[1, 0]]
    with pytest.raises(ValueError, match="expected 4 states in start_state, one for each sample, got 1"):
        made(list(states[:1]))
    with pytest.raises(ValueError, match="start_state: expected numbers"):
        made(states * float("nan"))
