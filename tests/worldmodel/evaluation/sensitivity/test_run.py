import dataclasses
import json

import numpy as np
import pytest
import torch

from tests.support.two_processes import in_two_processes
from worldmodel.data.synthetic import SyntheticFrames
from worldmodel.evaluation.controls import CONTROLS
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.evaluation.sensitivity.run import (
    STATIC,
    SensitivityConfig,
    SensitivityProbe,
    probe_model,
    run,
)
from worldmodel.evaluation.sensitivity.verdict import NEEDED_SHARE, judge, responses

CONFIG = SensitivityConfig(response_clips=3)


class Renderer:
    """A perfect world model: it draws the shapes where the commands put them; `gain` spoils its scale."""

    def __init__(self, normalizer, colors, gain=1.0):
        self.normalizer, self.colors, self.gain = normalizer, colors, gain

    def __call__(self, given, actions, num_frames, seed, clip):
        if actions is None:
            return given[:, -1:].expand(-1, num_frames, -1, -1, -1)
        videos = []
        for row, first in zip(actions, given, strict=True):
            states = self.normalizer.denormalize((self.gain * row).clamp(-1, 1), "a")
            frames = SyntheticFrames(states, tuple(given.shape[-2:]), self.colors).read(range(len(states)))
            later = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
            videos.append(torch.cat([first, later[len(first) - 1 :]]))
        return torch.stack(videos)


def deaf(given, actions, num_frames, seed, clip):
    """Moves, and well seeded, but whatever it is told."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(num_frames - given.shape[1], 1, 1, 1, generator=generator).cumsum(0)
    later = (given[:1, -1] + 0.05 * steps).clamp(0, 1)
    return torch.cat([given, later.expand(len(given), *later.shape)], 1)


@pytest.fixture(scope="module")
def clips(source, contract, training_clips):
    return held_out_clips(source, contract, training_clips.normalizer, HeldOutConfig(split="all"))


@pytest.fixture(scope="module")
def colors(source):
    return source[0].frames["head"].colors


def records_of(predict, clips, recover=None):
    probe = SensitivityProbe(predict, 1, CONFIG, recover)
    records = []
    for number in range(len(clips)):
        clip, other = clips[number], clips[clips.partner(number)]
        record, _ = probe.measure(
            clip, clip.actions, clip.names, other.actions, seed=number, with_response=number < 3
        )
        records.append(json.loads(json.dumps(record)))
    return records


def test_a_model_that_draws_what_it_is_told_follows(clips, colors):
    records = records_of(Renderer(clips.normalizer, colors), clips)
    following = judge(records)
    assert following.is_followed, following.reasons
    assert following.title == "The actions are followed."
    assert {check.control for check in following.checks} == {*CONTROLS, STATIC}
    assert all(check.wins.mean >= NEEDED_SHARE for check in following.checks)
    assert following.best_scale == 1.0
    assert set(responses(records)) == set(clips[0].names)
    assert all(estimate.mean > 1e-3 for estimate in responses(records).values())


def test_a_robot_told_to_hold_drifts_less_than_one_that_is_driven(clips, colors):
    records = records_of(Renderer(clips.normalizer, colors), clips)
    drift = {name: np.mean([record["drift"][name][-1] for record in records]) for name in records[0]["drift"]}
    assert drift[STATIC] == 0
    assert 0 < drift["hold"] < 0.5 * drift["true"]
    assert drift["true"] == pytest.approx(drift["truth"], rel=0.1)
    moved = [
        (clip.frames[-1] - clip.frames[0]).abs().mean() for clip in (clips[i] for i in range(len(clips)))
    ]
    assert drift["truth"] == pytest.approx(np.mean(moved), rel=1e-5)


def test_a_model_that_does_not_listen_does_not(clips):
    following = judge(records_of(deaf, clips))
    assert following.title == "The actions are not followed."
    assert following.reasons[0].startswith("The video is the same whatever is commanded")
    failed = {check.control for check in following.checks if not check.is_passed}
    assert failed >= set(CONTROLS)
    assert all(check.change.mean == 0 for check in following.checks if check.control in CONTROLS)
    assert any(
        "scaled: true actions are better in 0% of 12 episodes" in reason for reason in following.reasons
    )


def test_a_model_that_remembers_the_video_but_does_not_listen_is_found_out(clips):
    films = {clip.frames[0].sum().item(): clip.frames for clip in (clips[i] for i in range(len(clips)))}

    def remember(given, actions, num_frames, seed, clip):
        return torch.stack([films[frames[0].sum().item()] for frames in given])

    following = judge(records_of(remember, clips))
    assert not following.is_followed
    assert {check.control for check in following.checks if check.is_passed} == {STATIC}


def test_actions_fifty_times_too_large_are_named(clips, colors):
    following = judge(records_of(Renderer(clips.normalizer, colors, gain=50.0), clips))
    assert following.title == "The actions are not followed."
    assert following.best_scale == 0.02
    assert any("multiplied by 0.02: their scale is wrong" in reason for reason in following.reasons)


def test_a_scale_is_named_when_the_intervals_lie_apart(clips, colors):
    """From two clips that say opposite things, the mean names a scale and nothing is known."""
    records = records_of(Renderer(clips.normalizer, colors), clips)[:2]
    tried = [{"1.0": 0.010, "0.5": 0.001}, {"1.0": 0.010, "0.5": 0.015}]
    few = judge([{**one, "scale_error": errors} for one, errors in zip(records, tried, strict=True)])
    assert few.best_scale == 0.5
    assert not any("their scale is wrong" in reason for reason in few.reasons)
    sure = judge([{**one, "scale_error": {"1.0": 0.01, "0.5": 0.001}} for one in records])
    assert any("multiplied by 0.5: their scale is wrong" in reason for reason in sure.reasons)


def test_silence_of_a_dimension_is_said_when_its_interval_is_below_the_bar(clips, colors):
    records = records_of(Renderer(clips.normalizer, colors), clips)[:2]
    seen = [{"x": 1.0, "y": 0.0}, {"x": 1.0, "y": 0.03}]
    unsure = judge([{**one, "response": found} for one, found in zip(records, seen, strict=True)])
    assert not any("No visible response" in reason for reason in unsure.reasons)


def test_a_dimension_without_effect_is_named(clips, colors):
    class OneArmed(Renderer):
        def __call__(self, given, actions, num_frames, seed, clip):
            still = None if actions is None else actions.clone()
            if still is not None:
                still[..., 3] = 0
            return super().__call__(given, still, num_frames, seed, clip)

    following = judge(records_of(OneArmed(clips.normalizer, colors), clips))
    assert any("No visible response to right_y." in reason for reason in following.reasons)


def test_an_idle_clip_proves_nothing(clips):
    records = records_of(deaf, clips)
    still = [{**record, "moves": False} for record in records]
    assert "nothing can be said" in judge(still).reasons[0]
    assert not judge(still).is_followed
    # A control that tells the same is no control: here all of them do, in all but one clip.
    equal = [{**record, "told": dict.fromkeys(record["told"], 0.0)} for record in records[1:]]
    check = next(c for c in judge([records[0], *equal]).checks if c.control == "reversed")
    assert check.wins.count == 1


def test_three_good_episodes_are_not_enough(clips, colors):
    records = records_of(Renderer(clips.normalizer, colors), clips)
    assert not judge(records[:3]).is_followed
    assert judge(records[:5]).is_followed


def test_recovered_actions_are_compared_with_what_each_video_was_told(clips, colors):
    def centers(frames, embodiment):
        """Reads the shapes' places back from the pictures: the mean place of each one's color."""
        shapes = torch.from_numpy(colors / 255).float()
        grid = torch.linspace(-1, 1, frames.shape[-1]) / 0.7
        found = []
        for color in shapes[1:]:
            weight = (-200 * (frames - color[:, None, None]).square().sum(1)).exp()
            total = weight.sum((1, 2)).clamp_min(1e-6)
            found += [(weight.sum(1) * grid).sum(1) / total, (weight.sum(2) * grid).sum(1) / total]
        raw = torch.stack(found, 1)[1:].double().numpy()
        return clips.normalizer.normalize(np.clip(raw, -1, 1), embodiment)

    records = records_of(Renderer(clips.normalizer, colors), clips, centers)
    mean = {name: np.mean([r["recovered"][name] for r in records]) for name in records[0]["recovered"]}
    assert "null" not in mean
    assert mean["true video"] < 0.25
    assert mean["true"] == pytest.approx(mean["true video"], abs=0.05)
    assert mean["reversed"] < 0.3  # it obeys the reversed commands as well


def test_script_on_a_model_writes_the_page_and_goes_on(model_folder, source, tmp_path, capsys):
    config = SensitivityConfig(
        output=str(tmp_path),
        held_out=HeldOutConfig(split="all", episodes=3),
        num_inference_steps=1,
        response_clips=1,
        scales=(0.5, 1.0),
        sheets=1,
    )
    assert run(str(model_folder), source, config) == 3  # untrained
    assert "The actions are not followed." in capsys.readouterr().out
    page, results = (
        (tmp_path / "report.html").read_text(),
        json.loads((tmp_path / "sensitivity.json").read_text()),
    )
    assert "The actions are not followed." in page
    assert results["is_followed"] is False
    assert set(results["response"]) == {"left_x", "left_y", "right_x", "right_y"}
    assert results["recovered"]["true"]["count"] == 3
    lines = (tmp_path / "clips.jsonl").read_text()
    run(str(model_folder), source, config)
    assert (tmp_path / "clips.jsonl").read_text() == lines
    shared = dataclasses.replace(config, output=str(tmp_path / "two"))
    in_two_processes(lambda: run(str(model_folder), source, shared) in (0, 3))
    assert json.loads((tmp_path / "two/sensitivity.json").read_text()) == results


FEW = {"num_inference_steps": 1, "response_clips": 3, "sheets": 0}


@pytest.mark.parametrize(("gain", "code"), [(1.0, 0), (50.0, 3)])
def test_script_finds_mis_scaled_actions(
    model_folder, source, clips, colors, tmp_path, capsys, monkeypatch, gain, code
):
    renderer = Renderer(clips.normalizer, colors)
    # A model that follows what reaches it.
    monkeypatch.setattr(ModelPredictor, "__call__", lambda self, *told: renderer(*told))
    held_out = HeldOutConfig(split="all", episodes=5)
    config = SensitivityConfig(output=str(tmp_path), held_out=held_out, action_gain=gain, **FEW)
    assert run(str(model_folder), source, config) == code
    printed, page = capsys.readouterr().out, (tmp_path / "report.md").read_text()
    assert ("The actions are not followed." in printed) is (code == 3)
    assert ("multiplied by 0.02: their scale is wrong" in printed) is (code == 3)
    assert ("reached the model multiplied by 50" in page) is (code == 3)


def test_the_gain_reaches_the_model_itself(make_model, clips):
    gained, plain = (
        probe_model(
            make_model(regime="acg"), SensitivityConfig(action_gain=gain, num_inference_steps=1), "a"
        )[0]
        for gain in (50.0, 1.0)
    )
    given, actions = clips[0].frames[None, :1], clips[0].actions[None]
    assert torch.equal(
        gained.predict(given, actions, 13, 0, clips[0]), plain.predict(given, 50 * actions, 13, 0, clips[0])
    )
    assert not torch.equal(
        gained.predict(given, actions, 13, 0, clips[0]), plain.predict(given, actions, 13, 0, clips[0])
    )
    assert torch.equal(
        gained.predict(given, None, 13, 0, clips[0]), plain.predict(given, None, 13, 0, clips[0])
    )


def test_script_says_that_a_model_without_actions_does_not_follow(make_model, source, tmp_path, capsys):
    make_model(regime="no_action").save_pretrained(tmp_path / "model")
    config = SensitivityConfig(
        output=str(tmp_path / "out"), held_out=HeldOutConfig(split="all", episodes=5), **FEW
    )
    assert run(str(tmp_path / "model"), source, config) == 3
    assert "The actions are not followed." in capsys.readouterr().out
    results = json.loads((tmp_path / "out/sensitivity.json").read_text())
    assert {name: check["change"]["mean"] for name, check in results["checks"].items()} == pytest.approx(
        dict.fromkeys(CONTROLS, 0.0) | {STATIC: results["checks"][STATIC]["change"]["mean"]}, abs=1e-6
    )
    page = (tmp_path / "out/report.md").read_text()
    assert "true actions are better in 0% of 5 episodes" in page
    assert "the model does not read its actions" in page


def test_scales_must_be_comparable():
    with pytest.raises(ValueError, match="compared with 1"):
        SensitivityConfig(scales=(0.5, 2.0))
