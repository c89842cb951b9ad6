import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.browser import open_page
from tests.support.two_processes import in_two_processes
from worldmodel.config import load_config
from worldmodel.data.video import open_video
from worldmodel.evaluation.controls import CONTROLS
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.metrics.generation import AlexNetDistance
from worldmodel.evaluation.metrics.video import score_video
from worldmodel.evaluation.nearest_frame import NearestFrames
from worldmodel.evaluation.rollouts.page import quality_table, row_title, summary_text
from worldmodel.evaluation.rollouts.results import (
    SUMMARY_METRICS,
    above_static,
    episode_means,
    horizon,
    row_names,
    summarize,
    wins,
)
from worldmodel.evaluation.rollouts.run import RolloutEvaluation, RolloutsConfig, run
from worldmodel.locator.model import Located, Locator, LocatorConfig
from worldmodel.models.config import ObjectiveConfig
from worldmodel.models.picture_head import HeadConfig
from worldmodel.quickstart import pictures as quickstart_pictures

HELD_OUT = HeldOutConfig(split="all", episodes=3)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def record(uid, **rows):
    curves = {
        name: {
            "psnr": values,
            "ssim": [v / 100 for v in values],
            "mse": [10 ** (-v / 10) for v in values],
            "moving_psnr": [None, *values[1:]],
            "edges_moving": [None, *(v / 100 for v in values[1:])],
            "moving_mse": [None, *(10 ** (-v / 10) for v in values[1:])],
        }
        for name, values in rows.items()
    }
    return {"uid": uid, "task": "t", "embodiment": "a", "rows": curves}


RECORDS = [
    record("a", true=[24.0, 26.0], static=[20.0, 20.0], autoencoder=[30.0, 30.0], zero=[25.0, 25.0]),
    record("a", true=[28.0, 30.0], static=[20.0, 20.0], autoencoder=[30.0, 30.0], zero=[20.0, 20.0]),
    record("b", true=[21.0, 23.0], static=[20.0, 20.0], autoencoder=[30.0, 30.0]),
]


def test_frames_then_clips_then_episodes():
    results = summarize(RECORDS)
    assert (results["episodes"], results["clips"]) == (2, 3)
    assert results["rows"]["true"]["psnr"]["mean"] == pytest.approx((27 + 22) / 2)
    assert results["rows"]["true"]["psnr"]["count"] == 2
    assert results["rows"]["true"]["ssim_last"]["mean"] == pytest.approx((0.28 + 0.23) / 2)
    assert results["rows"]["true"]["moving_psnr"]["mean"] == pytest.approx((28 + 23) / 2)
    # dB of the mean error of a clip: half of 24 dB and 26 dB is not 25 dB.
    clips = [-10 * np.log10(np.mean(10 ** (-np.array(v) / 10))) for v in ((24, 26), (28, 30), (21, 23))]
    episodes = [(clips[0] + clips[1]) / 2, clips[2]]
    assert results["rows"]["true"]["clip_psnr"]["mean"] == pytest.approx(np.mean(episodes))
    assert results["gap_closed"]["clip_psnr"]["mean"] == pytest.approx((np.mean(episodes) - 20) / 10)
    assert results["rows"]["zero"]["psnr"]["count"] == 1  # a control may be missing in an episode
    assert results["wins"]["zero"]["clip_psnr"] == pytest.approx(
        {"mean": 1, "low": 0.2065, "high": 1, "count": 1}, abs=1e-3
    )


def test_a_share_whose_ceiling_is_below_its_floor_is_undefined_and_says_why():
    still = record("s", true=[26.0, 26.0], static=[30.0, 30.0], autoencoder=[29.7, 29.7])
    results = {**summarize([still]), "action_spaces": {}}
    assert results["gap_closed"]["clip_psnr"]["mean"] is None
    shown = summary_text(results)
    assert "way from static frame to ceiling: dB undefined, MSE undefined" in shown
    assert "undefined: the static frame (30.0000) is no worse than the autoencoder (29.7000)" in shown
    assert "reason" not in summarize(RECORDS)["gap_closed"]["clip_psnr"]


def test_horizon_is_one_estimate_per_frame():
    curve = horizon(RECORDS, "true", "psnr")
    assert [estimate.mean for estimate in curve] == pytest.approx([23.5, 25.5])
    assert horizon(RECORDS, "true", "moving_psnr")[0].count == 0


def test_the_static_frame_is_beaten_by_mean_error_and_the_nearest_frame_is_named():
    above = above_static(RECORDS, "mse")
    assert (above["every_frame"], above["frame"]) == (True, 1)
    errors = [10 ** (-level / 10) for level in (24.0, 28.0, 21.0)]
    expected = ((errors[0] + errors[1]) / 2 + errors[2]) / 2 / 10**-2  # clips, then episodes
    assert above["ratio"]["mean"] == pytest.approx(expected)
    worse = [record("c", true=[22.0, 19.0], static=[20.0, 20.0])]
    assert above_static(worse, "mse")["frame"] == 2
    assert above_static(worse, "mse")["every_frame"] is False
    assert above_static(RECORDS, "moving_mse")["frame"] == 2  # nothing moves in the first frame
    assert above_static([record("d", true=[22.0])], "mse")["frame"] is None


def test_a_clip_that_has_not_moved_yet_does_not_outweigh_those_that_have():
    still = record("still", true=[40.0, 25.0], static=[100.0, 20.0])
    moved = record("moved", true=[25.0, 25.0], static=[20.0, 20.0])
    assert above_static([still, moved], "mse")["every_frame"] is True  # by dB: -60 and +5 in frame 1
    resting = [record("e", true=[40.0, 25.0], static=[100.0, 20.0])]
    resting[0]["rows"]["static"]["mse"][0] = 0.0
    assert above_static(resting, "mse")["frame"] == 2


def test_object_numbers_are_of_the_clips_in_which_it_is_carried():
    judged = [
        {"moved": moved, "in_place": {"true": near}, "distance": {"true": distance}}
        for moved, near, distance in ((True, True, 1.0), (True, False, None), (False, False, 9.0))
    ]
    records = [{**one, "object": found} for one, found in zip(RECORDS, judged, strict=True)]
    results = summarize(records)
    assert (results["object_carried"]["mean"], results["object_carried"]["count"]) == (2 / 3, 3)
    assert (results["object"]["true"]["mean"], results["object"]["true"]["count"]) == (0.5, 2)
    assert results["object_distance"]["true"]["mean"] == 1.0


def test_rows_and_wins_and_episode_means():
    assert row_names(RECORDS) == ["static", "autoencoder", "true", "zero"]
    for metric in SUMMARY_METRICS:  # better by every one of them, whichever way it counts
        assert wins(RECORDS, "static", metric).mean == 1.0
        assert wins(RECORDS, "autoencoder", metric).mean == 0.0
    means = episode_means(RECORDS, [1.0, None, None])
    assert means[0] == 1.0
    assert math.isnan(means[1])


@pytest.fixture(scope="module")
def report(model_folder, source, tmp_path_factory):
    output = tmp_path_factory.mktemp("rollouts")
    locator = output / "locator"
    torch.manual_seed(0)
    Locator(LocatorConfig(height=32, width=32, channels=8)).save_pretrained(locator, {})
    config = RolloutsConfig(
        output=str(output), held_out=HELD_OUT, num_inference_steps=1, videos=2, locator=str(locator)
    )
    assert run(str(model_folder), source, config) == 0
    return output, config


def test_journey_every_row_is_there_with_intervals(report):
    output, _ = report
    results = json.loads((output / "results.json").read_text())
    assert set(results["rows"]) == {"static", "autoencoder", "true", *CONTROLS}
    for values in results["rows"].values():
        assert values["psnr"]["count"] == 3
        assert values["psnr"]["low"] < values["psnr"]["mean"] < values["psnr"]["high"]
    assert results["rows"]["autoencoder"]["psnr"]["mean"] > results["rows"]["true"]["psnr"]["mean"]
    assert len(results["horizon"]["true"]["psnr"]) == 12
    assert set(results["action_error"]) == {"truth", *results["rows"]}


def test_journey_the_tables_fit_a_terminal(report):
    output, _ = report
    results = json.loads((output / "results.json").read_text())
    lines = summary_text(results).splitlines()
    assert max(map(len, lines)) <= 120
    psnr = results["rows"]["true"]["psnr"]["mean"]
    assert any(line.startswith("true actions ") and f"{psnr:.2f}" in line for line in lines)
    first = lines.index(next(line for line in lines if line.startswith("true actions better than")))
    assert lines[first + 1].startswith("static frame (floor)")
    assert len({len(line) for line in lines[first : first + 1 + len(results["wins"])]}) == 1  # columns
    assert "way from static frame to ceiling: dB" in lines[-2]


def test_journey_the_actions_are_said_to_be_commanded_or_measured(report):
    output, _ = report
    results = json.loads((output / "results.json").read_text())
    assert set(results["action_spaces"].values()) == {""}
    not_stated = "Actions: the data do not state whether actions were commanded or measured."
    assert summary_text(results).splitlines()[-1] == not_stated
    assert not_stated in (output / "report.md").read_text()
    measured = {**results, "action_spaces": dict.fromkeys(results["action_spaces"], "measured_poses")}
    assert "Actions: measured_poses (end-effector poses measured" in summary_text(measured)
    older = {key: value for key, value in results.items() if key != "action_spaces"}
    assert "Actions:" not in summary_text(older)


def test_journey_the_page_holds_everything_and_asks_for_nothing(report):
    output, _ = report
    page = (output / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 2
    assert page.count("data:image/png;base64,") == 3  # curves, two trajectories
    assert "http://" not in page
    assert "https://" not in page
    assert "autoencoder (ceiling)" in page
    markdown = (output / "report.md").read_text()
    assert "| **true actions** |" in markdown
    assert "](videos/clip000.mp4)" in markdown


def test_journey_videos_are_truth_prediction_difference(report, source):
    output, _ = report
    video = open_video(output / "videos" / "clip000.mp4")
    assert (len(video), video.size) == (13, (192, 3 * 192 + 8))
    first = video.read([0])[0].astype(float)
    truth, prediction, difference = first[:, :192], first[:, 196:388], first[:, 392:584]
    assert np.abs(truth - prediction).mean() < 3  # the given frame is shown in both
    assert np.abs(difference - 127.5).mean() < 3


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_journey_the_videos_play_in_a_browser(report):
    output, _ = report
    seen = open_page(CHROMIUM, output / "report.html")
    assert len(seen["videos"]) == 2
    for video in seen["videos"]:
        assert video["error"] == ""
        assert video["time"] >= 0.1  # it advances
        assert video["ready"] >= 2  # there is a picture to show
        assert video["width"] == 3 * 192 + 8
    assert seen["broken"] == 0
    assert seen["wide"] <= 0  # nothing stands out of the window


def test_two_processes_share_the_clips_and_give_the_same_results(report, model_folder, source, tmp_path):
    output, config = report
    shared = dataclasses.replace(config, output=str(tmp_path))
    in_two_processes(lambda: run(str(model_folder), source, shared) == 0)
    assert (tmp_path / "results.json").read_text() == (output / "results.json").read_text()
    assert read_records(tmp_path / "clips.jsonl") == read_records(output / "clips.jsonl")
    assert {path.name for path in (tmp_path / "videos").iterdir()} == {
        path.name for path in (output / "videos").iterdir()
    }


def test_half_precision_is_part_of_the_settings_and_hardly_of_the_results(
    report, model_folder, source, tmp_path
):
    output, config = report
    with pytest.raises(ValueError, match=r"mixed_precision was None, now 'bf16'; use another output"):
        run(str(model_folder), source, dataclasses.replace(config, mixed_precision="bf16"))
    half = dataclasses.replace(config, output=str(tmp_path), mixed_precision="bf16", videos=0)
    assert run(str(model_folder), source, half) == 0
    plain, rounded = (json.loads((folder / "results.json").read_text()) for folder in (output, tmp_path))
    assert rounded["settings"]["mixed_precision"] == "bf16"
    for row in ("true", "zero"):
        values = [results["rows"][row]["clip_psnr"]["mean"] for results in (plain, rounded)]
        assert values[0] != values[1]
        assert values[0] == pytest.approx(values[1], abs=0.05)


def test_a_killed_run_goes_on_where_it_was(report, model_folder, source, monkeypatch):
    output, config = report
    lines = (output / "clips.jsonl").read_text().splitlines(keepends=True)
    results = (output / "results.json").read_text()
    (output / "clips.jsonl").write_text("".join(lines[:3]) + lines[3][:50])
    evaluated = []
    original = RolloutEvaluation.evaluate
    monkeypatch.setattr(
        RolloutEvaluation, "evaluate", lambda self, number: evaluated.append(number) or original(self, number)
    )
    run(str(model_folder), source, config)
    assert evaluated == [2]
    assert (output / "results.json").read_text() == results


@pytest.mark.parametrize("regime", ["no_action", "lacg"])
def test_other_regimes(make_model, source, contract, training_clips, regime):
    model = make_model(regime=regime)
    clips = held_out_clips(source, contract, training_clips.normalizer, HELD_OUT)
    drive = "latent" if regime == "lacg" else "robot"
    config = RolloutsConfig(num_inference_steps=1, drive=drive, controls=("zero", "reversed", "mirrored"))
    evaluated, videos = RolloutEvaluation(model, clips, config).evaluate(0)
    if regime == "no_action":
        assert torch.equal(videos["true"], videos["reversed"])
        assert evaluated["rows"]["true"] == evaluated["rows"]["zero"] != evaluated["rows"]["static"]
        assert evaluated["action_error"] == {}
    else:
        assert not torch.equal(videos["true"], videos["reversed"])
        assert "mirrored" not in videos  # latent actions have no arms
    assert torch.equal(videos["true"][0], clips[0].frames[0])


def test_a_model_without_actions_makes_and_is_judged_on_one_video(
    make_model, source, contract, training_clips, monkeypatch
):
    clips = held_out_clips(source, contract, training_clips.normalizer, HELD_OUT)
    config = RolloutsConfig(num_inference_steps=1, controls=("zero", "null", "reversed"))
    evaluation = RolloutEvaluation(make_model(regime="no_action"), clips, config)
    scored = []
    monkeypatch.setattr(
        "worldmodel.evaluation.rollouts.run.score_video",
        lambda *videos: scored.append(videos) or score_video(*videos),
    )
    evaluated, videos = evaluation.evaluate(0)
    assert set(evaluated["rows"]) == {"static", "autoencoder", "true", "zero", "null", "reversed"}
    assert len(scored) == 3
    clip = clips[0]
    told = evaluation.predictor(clip.frames[None, :1], clip.actions[None], len(clip.frames), seed=0)[0]
    assert (videos["true"] - told).abs().max() < 1e-6


def test_static_rows_are_exact(make_model, source, contract, training_clips):
    clips = held_out_clips(source, contract, training_clips.normalizer, HELD_OUT)
    config = RolloutsConfig(num_inference_steps=1, controls=())
    evaluated, videos = RolloutEvaluation(make_model(regime="acg"), clips, config).evaluate(1)
    real = clips[1].frames
    expected = (real[1:] - real[0]).square().mean((1, 2, 3))
    assert evaluated["rows"]["static"]["mse"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert set(videos) == {"static", "autoencoder", "true"}


def test_rollouts_may_be_longer_than_a_clip(make_model, source, contract, training_clips):
    held_out = dataclasses.replace(HELD_OUT, num_frames=25)  # two chunks of 12 frames
    clips = held_out_clips(source, contract, training_clips.normalizer, held_out)
    config = RolloutsConfig(num_inference_steps=1, controls=("zero",), held_out=held_out)
    evaluated, videos = RolloutEvaluation(make_model(regime="acg"), clips, config).evaluate(0)
    assert videos["true"].shape == clips[0].frames.shape
    assert {len(rows["psnr"]) for rows in evaluated["rows"].values()} == {24}
    assert summarize([evaluated])["above_static"]["mse"]["frame"] in range(1, 25)


class Blobs:
    """Finds the brightest pixel of each channel: left gripper red, right gripper green, object blue."""

    def locate(self, frames):
        place = frames.flatten(2).argmax(2)
        points = torch.stack([place % frames.shape[3], place // frames.shape[3]], -1).float()
        return Located(points, torch.ones(len(frames), 3))


def test_positions_are_compared_with_the_truth_by_the_locators_eyes(
    make_model, source, contract, training_clips
):
    clips = held_out_clips(source, contract, training_clips.normalizer, HELD_OUT)
    evaluation = RolloutEvaluation(make_model(regime="acg"), clips, RolloutsConfig())
    evaluation.locator = Blobs()
    real, made = torch.zeros(3, 3, 32, 32), torch.zeros(3, 3, 32, 32)
    for t in range(3):
        real[t, 0, 5, 5 + t] = real[t, 1, 9, 9] = real[t, 2, 20, 20 + 3 * t] = 1
        made[t, 0, 5, 5] = made[t, 1, 9, 9] = made[t, 2, 20, 20 + 2 * t] = 1
    clip = dataclasses.replace(clips[0], frames=real)
    found = evaluation._positions(clip, {"true": made, "static": real[:1].expand(3, -1, -1, -1)})
    assert found["gripper_error"]["true"] == pytest.approx((1 + 2) / 4)  # two frames, two grippers
    assert found["gripper_error_end"] == found["gripper_error"]  # the clip is not longer than a second
    evaluation.model.contract = dataclasses.replace(evaluation.model.contract, fps=1.0)
    at_end = evaluation._positions(clip, {"true": made})["gripper_error_end"]
    assert at_end["true"] == pytest.approx(2 / 2)  # the last frame
    assert found["object"] == {
        "moved": True,
        "in_place": {"truth": True, "true": False, "static": False},
        "distance": {"truth": 0.0, "true": 4.0, "static": 12.0},  # 2 and 6 pixels of 32
    }
    made[2, 2] = real[2, 2]
    assert evaluation._positions(clip, {"true": made})["object"]["in_place"]["true"]


def test_the_control_named_null_needs_no_quotes():
    assert load_config(RolloutsConfig, None, ["controls=[null,zero]"]).controls == ("null", "zero")


def test_recovered_actions_are_compared_with_the_recorded_ones(make_model, source, contract, training_clips):
    clips = held_out_clips(source, contract, training_clips.normalizer, HELD_OUT)
    evaluation = RolloutEvaluation(make_model(regime="acg"), clips, RolloutsConfig())
    clip = clips[0]
    # A judge that reads every action off the brightness of the frame behind it.
    evaluation.recover = lambda frames, _: clip.actions + frames[1:].mean((1, 2, 3))[:, None]
    black, gray = torch.zeros_like(clip.frames), torch.full_like(clip.frames, 0.25)
    errors = evaluation._action_errors(clip, {"true": black, "zero": gray})
    assert errors["true"] == 0
    assert errors["zero"] == pytest.approx(0.25)
    assert errors["truth"] == pytest.approx(clip.frames[1:].mean().item(), rel=1e-5)


def test_another_models_judge_can_be_asked(make_model, source, contract, training_clips, tmp_path):
    make_model(regime="lacg").save_pretrained(tmp_path / "judge")
    clips = held_out_clips(source, contract, training_clips.normalizer, HELD_OUT)
    config = RolloutsConfig(num_inference_steps=1, controls=("zero",), judge=str(tmp_path / "judge"))
    evaluated, _ = RolloutEvaluation(make_model(regime="no_action"), clips, config).evaluate(0)
    assert set(evaluated["action_error"]) == {"truth", "static", "autoencoder", "true", "zero"}
    assert evaluated["action_error"]["truth"] != evaluated["action_error"]["static"]


def test_what_cannot_be_is_refused(model_folder, source):
    with pytest.raises(ValueError, match="controls are zero, null"):
        RolloutsConfig(controls=("upside_down",))
    with pytest.raises(ValueError, match="regime lacg, this one is acg"):
        run(str(model_folder), source, RolloutsConfig(held_out=HELD_OUT, drive="latent"))


class TwoViews:
    """The same episodes seen by two cameras."""

    name = "two_views"

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        episode = self.source[index]
        reader = next(iter(episode.frames.values()))
        return dataclasses.replace(episode, frames={"head": reader, "wrist": reader})


def test_each_camera_of_a_picture_is_scored_by_itself(make_model, source, contract, tmp_path):
    model = make_model(regime="acg")
    model.contract = dataclasses.replace(contract, camera="head+wrist", layout="side_by_side")
    model.save_pretrained(tmp_path / "model")
    output = tmp_path / "report"
    config = RolloutsConfig(
        output=str(output), held_out=HELD_OUT, num_inference_steps=1, controls=(), videos=1
    )
    assert run(str(tmp_path / "model"), TwoViews(source), config) == 0
    clips = [json.loads(line) for line in (output / "clips.jsonl").read_text().splitlines()[1:]]
    first = clips[0].get("record", clips[0])
    whole = first["rows"]["static"]["mse"]
    halves = [first["views"][name]["static"]["mse"] for name in ("head", "wrist")]
    assert np.mean(halves, axis=0) == pytest.approx(np.array(whole), rel=1e-6)
    results = json.loads((output / "results.json").read_text())
    assert set(results["views"]) == {"head", "wrist"}
    report = (output / "report.md").read_text()
    assert "Camera head" in report
    assert "Camera wrist" in report


def test_the_nearest_training_frame_is_a_row_on_request(source, contract, make_model, training_clips):
    clips = held_out_clips(source, contract, training_clips.normalizer, HELD_OUT)
    config = RolloutsConfig(held_out=HELD_OUT, num_inference_steps=1, controls=(), nearest=True)
    evaluated, videos = RolloutEvaluation(make_model(regime="acg"), clips, config).evaluate(0)
    assert list(evaluated["rows"]) == ["static", "nearest", "autoencoder", "true"]
    remembered = NearestFrames(clips.index, training_clips.normalizer)(clips[0].actions)
    assert torch.equal(videos["nearest"][1:], remembered)
    assert row_names([evaluated])[:2] == ["static", "nearest"]
    assert row_title("nearest") == "nearest training frame (floor)"


def test_lpips_is_a_column_where_its_weights_are_given(make_model, source, tmp_path):
    torch.manual_seed(0)
    network = AlexNetDistance()
    features = {name: part for name, part in network.state_dict().items() if name.startswith("features.")}
    save_file(features, tmp_path / "alexnet_features.safetensors")
    linear = {f"lin{at}.model.1.weight": layer.weight.abs() for at, layer in enumerate(network.linear)}
    save_file(linear, tmp_path / "alex_linear.safetensors")
    model = make_model(regime="acg")
    clips = held_out_clips(source, model.contract, model.normalizer, HELD_OUT)
    config = RolloutsConfig(lpips=str(tmp_path), controls=(), num_inference_steps=1)
    found, videos = RolloutEvaluation(model, clips, config).evaluate(0)
    distance = AlexNetDistance.load(
        tmp_path / "alexnet_features.safetensors", tmp_path / "alex_linear.safetensors"
    )
    first = found["num_given"]
    expected = distance(videos["true"][first:], clips[0].frames[first:])
    assert found["rows"]["true"]["lpips"] == pytest.approx(expected.tolist(), rel=1e-4)
    table = quality_table(summarize([found])["rows"])
    assert (table.header[-1], len(table.rows)) == ("LPIPS", 3)
    assert table.rows[-1][-1].startswith(f"{expected.mean():.4f}")
    with pytest.raises(ValueError, match=r"expected alexnet-owt-7be5be79\.pth .*, found neither"):
        AlexNetDistance.from_folder(tmp_path / "none")


class Enlarged:
    """A source whose camera has twice the size."""

    name = "enlarged"

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        episode = self.source[index]
        return dataclasses.replace(episode, frames={"head": EnlargedFrames(episode.frames["head"])})


@dataclasses.dataclass(frozen=True)
class EnlargedFrames:
    inner: object

    @property
    def size(self):
        return tuple(2 * side for side in self.inner.size)

    def __len__(self):
        return len(self.inner)

    def read(self, indices):
        return self.inner.read(indices).repeat(2, 1).repeat(2, 2)


@pytest.mark.parametrize("head", [None, HeadConfig(width=8)])
def test_videos_of_a_picture_head_have_the_size_of_the_camera(make_model, source, head, tmp_path):
    objective = ObjectiveConfig(pixel_weight=1.0 if head else 0.0)
    model = make_model(regime="acg", head=head, objective=objective)
    clips = held_out_clips(Enlarged(source), model.contract, model.normalizer, HELD_OUT)
    evaluation = RolloutEvaluation(model, clips, RolloutsConfig(controls=(), num_inference_steps=1))
    record, videos = evaluation.evaluate(0)
    assert videos["true"].shape[-2:] == (32, 32)  # what is measured
    shown = evaluation.shown(0, evaluation.commands(0, clips[0]))
    size = (64, 64) if head else (32, 32)
    assert shown["truth"].shape == shown["true"].shape == (13, 3, *size)
    given = record["num_given"]
    assert torch.equal(shown["true"][:given], shown["truth"][:given])
    page = quickstart_pictures.shown(evaluation, clips, 0)  # enlarged where there is no head
    assert {video.shape[-2:] for video in page.values()} == {(64, 64)}
    assert torch.equal(page["recorded"], clips.as_recorded(0)[given - 1 :])
    evaluation.picture(0, clips[0], videos["true"], tmp_path)
    assert len(open_video(tmp_path / "clip000.mp4")) == 13
