"""A picture head learns from recorded predictions: what is recorded, who learns, and what is refused."""

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.debug_run import CONFIG
from worldmodel.cli_errors import Stopped
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.training import predictions
from worldmodel.training.datasets import open_clips, open_index
from worldmodel.training.predictions import (
    AT_ONCE,
    PredictionsConfig,
    RecordedClips,
    augmented_step,
    recorded_clips,
)
from worldmodel.training.world_model import build_model, load_train_config, train
from worldmodel.types import Actions, to_uint8

HEAD = ["model.head.width=8", "model.trained=head", "model.objective.pixel_weight=1"]
SHORT = ["fit.micro_batch=2", "fit.global_batch=2", "validation.num_clips=0", "first_batch=0"]


@pytest.fixture(scope="module")
def base(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    words = [*overrides, *SHORT, "fit.steps=2", "fit.checkpoint_every=1", f"output={folder}"]
    assert train(load_train_config(CONFIG, words), False)
    return folder


@pytest.fixture
def record(base: Path, overrides: list[str], tmp_path: Path) -> Callable[..., RecordedClips]:
    data = load_train_config(CONFIG, overrides).data
    model = WorldModel.from_pretrained(base / "model")
    clips = open_clips(data, open_index(data), "train", model.normalizer, None, True)

    def run(**settings: object) -> RecordedClips:
        return recorded_clips(
            str(base / "model"), clips, PredictionsConfig(str(tmp_path / "made"), **settings)
        )

    run.clips = clips  # type: ignore[attr-defined]
    return run


def test_what_is_recorded_is_what_a_rollout_shows(base: Path, record: Callable[..., RecordedClips]) -> None:
    made, clips = record(clips=3), record.clips  # type: ignore[attr-defined]
    assert len(made) == 3
    last = clips[len(clips) - 1]
    assert torch.equal(made[2]["frames"], last.frames)
    model, count = WorldModel.from_pretrained(base / "model"), len(last.frames)
    chosen = [clips[number] for number in (0, (len(clips) - 1) // 2, len(clips) - 1)]
    batch = torch.stack([clip.frames for clip in chosen])
    given = count - len(made[0]["decoded"])
    result = RolloutPipeline(model).rollout(
        batch[:, :given],
        Actions(torch.stack([clip.robot_actions for clip in chosen])),
        num_frames=count,
        generator=torch.Generator().manual_seed(0),
    )
    assert torch.equal(made[0]["decoded"], to_uint8(result.frames[0, given:]))


def test_every_second_clip_is_predicted_by_the_earlier_checkpoint(
    base: Path, record: Callable[..., RecordedClips]
) -> None:
    alone = record(clips=4)
    both = record(clips=4, early=str(base / "checkpoints/step_00000001"))
    order = [0, 2, 1, 3]  # those of the last state first
    assert all(torch.equal(both[at]["frames"], alone[number]["frames"]) for at, number in enumerate(order))
    assert not torch.equal(both[2]["decoded"], alone[1]["decoded"])


def test_a_stopped_recording_goes_on(
    record: Callable[..., RecordedClips], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "AT_ONCE", 2)
    roll, calls = predictions._rolled_out, []

    def stopped(*given: object) -> dict:
        calls.append(given)
        signal.raise_signal(signal.SIGTERM)
        return roll(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(predictions, "_rolled_out", stopped)
    with pytest.raises(Stopped, match=r"recorded predictions are in .*, the same command goes on"):
        record(clips=4)
    monkeypatch.setattr(predictions, "_rolled_out", lambda *given: calls.append(given) or roll(*given))
    assert len(record(clips=4)) == 4
    assert len(calls) == 2 < AT_ONCE


def test_only_the_head_learns_and_a_resumed_training_ends_equal(
    base: Path, overrides: list[str], tmp_path: Path
) -> None:
    known = [f"start_from={base / 'model'}", f"predictions.folder={tmp_path / 'made'}", "predictions.clips=4"]
    words = [*overrides, *SHORT, *HEAD, *known, "fit.checkpoint_every=1"]
    for output, steps in (("whole", 3), ("parts", 1), ("parts", 3)):
        config = load_train_config(CONFIG, [*words, f"fit.steps={steps}", f"output={tmp_path / output}"])
        assert train(config, resume=True)
    trained = tmp_path / "whole/model"
    heads = [load_file(tmp_path / output / "model/head.safetensors") for output in ("whole", "parts")]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
    for file in ("interface.safetensors", "transformer/diffusion_pytorch_model.safetensors"):
        before, after = load_file(base / "model" / file), load_file(trained / file)
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(heads[0][name].abs().sum() > 0 for name in heads[0] if name.startswith("leave"))


def test_predictions_are_for_the_training_of_a_head(overrides: list[str]) -> None:
    with pytest.raises(
        ValueError, match=r"name it in start_from and set model\.trained=head, got start_from=''"
    ):
        load_train_config(CONFIG, [*overrides, "predictions.folder=made"])


def test_a_new_head_starts_from_another_one(base: Path, overrides: list[str], tmp_path: Path) -> None:
    words = [*overrides, *HEAD, "model.head={width: 8}", f"start_from={base}/model"]
    alone = build_model(load_train_config(CONFIG, words), open_index(load_train_config(CONFIG, words).data))
    with torch.no_grad():
        alone.head.log_sharpness.fill_(1.5)
    alone.save_pretrained(tmp_path / "other")
    config = load_train_config(CONFIG, [*words, f"head_from={tmp_path}/other"])
    index = open_index(config.data)
    assert build_model(config, index).head.log_sharpness.item() == 1.5
    for folder, message in (
        ("nowhere", "expected a folder with head.safetensors"),
        (str(base), "found none"),
    ):
        with pytest.raises(ValueError, match=message):
            build_model(dataclasses.replace(config, head_from=folder), index)
    wide = load_train_config(CONFIG, [*words, "model.head.width=16", f"head_from={tmp_path}/other"])
    with pytest.raises(ValueError, match=r"head\.safetensors: .* has shape .* head_from="):
        build_model(wide, index)
    with pytest.raises(ValueError, match=r"set model\.head={}"):
        build_model(load_train_config(CONFIG, [*overrides, f"head_from={tmp_path}/other"]), index)


def test_augmented_pictures_are_the_same_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(predictions, "recorded_step", lambda model, batch, generator: seen.append(batch))
    frames = torch.randint(0, 256, (2, 5, 3, 8, 8), dtype=torch.uint8)
    for number in range(30):
        generator = torch.Generator().manual_seed(number)
        augmented_step(None, {"frames": frames, "decoded": frames[:, 1:]}, generator)
    assert all(torch.equal(one["frames"][:, 1:], one["decoded"]) for one in seen)
    assert all(torch.equal(one["frames"].flatten().sort()[0], frames.flatten().sort()[0]) for one in seen)
    assert len({tuple(one["frames"][0, 0, :, 0, 0].tolist()) for one in seen}) > 10
