import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.debug_run import CONFIG, SHARED, losses
from worldmodel.checkpoint.folder import read_description
from worldmodel.config import load_config
from worldmodel.data.clips import cut_clip
from worldmodel.data.dataset import collate_clips
from worldmodel.data.index import index_episodes
from worldmodel.data.synthetic import synthetic_source
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.models.config import ObjectiveConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step
from worldmodel.training.datasets import open_index
from worldmodel.training.loop.checkpoints import CheckpointStore, verify
from worldmodel.training.loop.step import switch_on
from worldmodel.training.world_model import (
    TrainConfig,
    build_model,
    build_run,
    load_train_config,
    train,
    with_checkpointing_settled,
)
from worldmodel.types import ClipBatch, Episode, EpisodeSource


@dataclass(frozen=True)
class ChangedSource:
    """A source whose every episode is changed."""

    source: EpisodeSource
    change: Callable[[Episode], Episode]
    name: str = "changed"

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Episode:
        return self.change(self.source[index])


def test_fine_tuning_adds_embodiments_an_objective_and_a_refiner(
    overrides: list[str], tmp_path: Path
) -> None:
    short = [*overrides, "fit.steps=1", "model.small.scene=false"]
    first = [*short, "model.regime=lacg", f"output={tmp_path / 'first'}", "data.synthetic_embodiments=1"]
    assert train(load_config(TrainConfig, CONFIG, first), False)
    second = [*short, f"start_from={tmp_path / 'first/model'}", f"output={tmp_path / 'second'}"]
    second += ["model.regime=lacg"]
    second += ["data.synthetic_embodiments=2", "model.mcl.mode=detached", "model.objective.mcl_weight=0.5"]
    second += ["model.small.refiner_width=8"]
    assert train(load_train_config(CONFIG, second), False)
    model = WorldModel.from_pretrained(tmp_path / "second/model")
    assert model.normalizer.embodiments == ("robot0", "robot1")
    assert (model.config.regime, model.config.objective.mcl_weight) == ("lacg", 0.5)
    assert model.mcl is not None
    assert model.small is not None
    assert model.small.refiner is not None
    assert model.embodiment_classifier is not None


def saved_model(folder: Path, settings: list[str]) -> str:
    config = load_train_config(CONFIG, settings)
    build_model(config, open_index(config.data)).save_pretrained(folder)
    return f"start_from={folder}"


def test_fine_tuning_with_and_without_mcl_starts_from_the_same_weights(
    overrides: list[str], tmp_path: Path
) -> None:
    lacg = [*overrides, "model.regime=lacg"]
    start = saved_model(tmp_path / "one_robot", [*lacg, "data.synthetic_embodiments=1"])
    weights = []
    for contrast in ([], ["model.mcl.mode=exact"]):
        config = load_train_config(CONFIG, [*lacg, start, *contrast, "data.synthetic_embodiments=2"])
        weights.append(build_model(config, open_index(config.data)).state_dict())
    plain, contrasted = weights
    assert {name.partition(".")[0] for name in contrasted.keys() - plain.keys()} == {"mcl"}
    assert any(name.startswith("embodiment_classifier.") for name in plain)
    assert all(torch.equal(value, contrasted[name]) for name, value in plain.items())


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("regime", "weight", "part"),
    [("acg", "idm_weight", "idm"), ("lacg", "adversarial_weight", "embodiment_classifier")],
)
def test_a_fine_tuned_model_has_the_parts_of_its_new_objective_and_loads(
    regime: str, weight: str, part: str, before: int, after: int, overrides: list[str], tmp_path: Path
) -> None:
    settings = [*overrides, f"model.regime={regime}"]
    start = saved_model(tmp_path / "first", [*settings, f"model.objective.{weight}={before}"])
    saved_model(tmp_path / "second", [*settings, start, f"model.objective.{weight}={after}"])
    assert (part in WorldModel.from_pretrained(tmp_path / "second").parts()) == bool(after)


def test_a_model_trained_on_cropped_pictures_and_summed_actions_is_evaluated_on_such(
    overrides: list[str], tmp_path: Path
) -> None:
    cut = ["data.clip.aspect=crop", "data.clip.merge=sum", "data.clip.stride=2", "data.clip.step=1"]
    short = [*overrides, *cut, "data.latents=", "fit.steps=1", "validation.num_clips=0"]
    config = load_config(TrainConfig, CONFIG, [*short, f"output={tmp_path}"])
    assert train(config, False)
    known = read_description(tmp_path / "model")
    source = synthetic_source(4, 40, (32, 64), embodiments=("robot0", "robot1"))
    clip = held_out_clips(source, known.contract, known.normalizer, HeldOutConfig(split="all"))[0]
    frames, raw = cut_clip(source[0], clip.start, config.data.clip)
    assert torch.equal((clip.frames * 255).round(), frames.float())
    assert torch.equal(clip.actions, known.normalizer.normalize(raw, clip.embodiment))


def test_fine_tuning_on_other_frames_is_refused(
    one_process: Path, overrides: list[str], tmp_path: Path
) -> None:
    other = [*overrides, f"start_from={one_process / 'model'}", "data.clip.height=64", f"output={tmp_path}"]
    with pytest.raises(ValueError, match="expected frames of 32x32 pixels, got 64x32"):
        train(load_train_config(CONFIG, other), False)


def reordered(episode: Episode) -> Episode:
    return replace(episode, action_names=episode.action_names[::-1])


def narrowed(episode: Episode) -> Episode:
    return replace(episode, robot_actions=episode.robot_actions[:, :7], action_names=episode.action_names[:7])


REFUSED = {
    r"synthetic/episode0: actions of 'robot0': expected names \['joint0', .*, got \['joint13'": reordered,
    r"synthetic/episode0: actions of 'robot0': expected names .*'joint13'\], got .*'joint6'\]$": narrowed,
    "expected 16.6667 frames per second, got 5": lambda episode: replace(episode, fps=5.0),
    "expected camera 'head', got 'wrist'": lambda e: replace(e, frames={"wrist": e.frames["head"]}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_fine_tuning_on_another_robot_of_the_same_name_is_refused(
    message: str, one_process: Path, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*args: Any, **options: Any) -> ChangedSource:
        return ChangedSource(synthetic_source(*args, **options), REFUSED[message])

    monkeypatch.setattr("worldmodel.training.datasets.synthetic_source", changed)
    other = [*overrides, f"start_from={one_process / 'model'}", f"output={tmp_path / 'new'}"]
    with pytest.raises(ValueError, match=message):
        train(load_train_config(CONFIG, other), False)
    assert not (tmp_path / "new/config.yaml").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.clip.stride=2", "clip.stride was 1, now is 2; frames.fps was 16.66.*, now is 8.33"),
        ("data.synthetic_episodes=5", r"actions.robot0.q01 was \[.*; actions.robot0.num_samples was"),
    ],
)
def test_a_resume_on_other_clips_is_refused_and_leaves_the_run_alone(
    override: str, message: str, one_process: Path, overrides: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(one_process, folder)
    before = (folder / "config.yaml").read_text()
    other = [*overrides, *SHARED, "data.latents=", "fit.steps=3", override, f"output={folder}"]
    with pytest.raises(ValueError, match=f"belongs to another run: .*{message}"):
        train(load_config(TrainConfig, CONFIG, other), True)
    assert (folder / "config.yaml").read_text() == before


def test_a_resume_over_other_start_weights_is_refused(overrides: list[str], tmp_path: Path) -> None:
    settings = [*overrides, "validation.num_clips=0"]
    start = saved_model(tmp_path / "start", settings)
    run = [*settings, start, f"output={tmp_path / 'run'}"]
    assert train(load_train_config(CONFIG, [*run, "fit.steps=1"]), False)
    saved_model(tmp_path / "start", settings)  # the same weights, written again
    assert train(load_train_config(CONFIG, [*run, "fit.steps=2"]), True)
    saved_model(tmp_path / "start", [*settings, "model.seed=1"])
    with pytest.raises(ValueError, match=r'start_from was "[0-9a-f]{16}", now is "[0-9a-f]{16}"'):
        train(load_train_config(CONFIG, [*run, "fit.steps=2"]), True)


@pytest.mark.parametrize("mode", ["exact", "detached"])
def test_a_run_with_mcl_says_once_what_it_trains(
    mode: str, overrides: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    short = [*overrides, "fit.steps=1", "validation.num_clips=0"]
    assert train(load_config(TrainConfig, CONFIG, [*short, f"output={tmp_path / 'plain'}"]), False)
    assert "sends gradient to" not in caplog.text
    contrasted = [*short, f"model.mcl.mode={mode}", f"output={tmp_path / 'mcl'}"]
    assert train(load_config(TrainConfig, CONFIG, contrasted), False)
    assert caplog.text.count(f"MCL (infonce, {mode}) sends gradient to") == 1
    verdicts = dict(re.findall(r"  (backbone|critic, heads): (yes|NO)", caplog.text))
    assert verdicts == {"backbone": "yes" if mode == "exact" else "NO", "critic, heads": "yes"}


def test_the_report_before_the_first_step_takes_no_more_than_a_step(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def report(model: WorldModel, batch: ClipBatch, generator: torch.Generator) -> str:
        seen.append((len(batch.robot_actions), model.fdm.backbone.gradient_checkpointing))
        return ""

    monkeypatch.setattr("worldmodel.training.world_model.mcl_gradient_flow", report)
    small = ["fit.steps=1", "fit.micro_batch=1", "fit.gradient_checkpointing=true", "validation.num_clips=0"]
    settings = [*overrides, *small, "model.mcl.mode=detached", f"output={tmp_path}"]
    assert train(load_config(TrainConfig, CONFIG, settings), False)
    assert seen == [(1, True)]


@pytest.mark.parametrize(("memory", "expected"), [(3.001, True), (80.0, False)])
def test_auto_checkpoints_blocks_where_the_gpu_is_too_small(
    memory: float, expected: bool, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(TrainConfig, CONFIG, [*overrides, "fit.gradient_checkpointing=auto"])
    run = build_run(config, torch.device("cpu"))
    gpu = SimpleNamespace(total_memory=memory * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    accelerator: Any = SimpleNamespace(
        device=torch.device("cuda"), num_processes=1, is_main_process=True, mixed_precision="bf16"
    )
    assert with_checkpointing_settled(run, accelerator).config.fit.gradient_checkpointing is expected
    accelerator.device = torch.device("cpu")
    assert with_checkpointing_settled(run, accelerator).config.fit.gradient_checkpointing is False


def test_both_exports_use_the_data_and_the_model_of_the_run(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        looks.append(1)
        return index_episodes(*args, **options)

    monkeypatch.setattr("worldmodel.training.datasets.index_episodes", counted)
    words = [*overrides, "fit.steps=2", "fit.validate_every=1", f"output={tmp_path}"]
    config = load_config(TrainConfig, CONFIG, words)
    assert train(config, False)
    assert len(looks) == 1
    store = CheckpointStore(tmp_path / "checkpoints", 3)
    best = store.best()
    assert best is not None
    for name, checkpoint in (("model", store.last_good()), ("best", verify(store.folder / best))):
        assert checkpoint is not None
        saved = WorldModel.from_pretrained(tmp_path / name).state_dict()
        averaged = checkpoint.tensors("ema")
        assert averaged
        assert all(torch.equal(saved[key], value) for key, value in averaged.items())
        assert (tmp_path / name / "vae").is_dir()


def test_critic_and_heads_have_their_own_learning_rate(
    overrides: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    short = [*overrides, "fit.steps=2", "validation.num_clips=0", "model.mcl.mode=finite_difference"]
    rates = {"unset": "0", "same": "1e-3", "faster": "5e-2"}  # the host's is 1e-3
    for name, rate in rates.items():
        words = [*short, f"model.mcl.head_lr={rate}", f"output={tmp_path / name}"]
        assert train(load_config(TrainConfig, CONFIG, words), False)
    assert "lr 0.05 (x50)" in caplog.text
    assert "e.g. mcl." in caplog.text
    unset, same, faster = (losses(tmp_path / name) for name in rates)
    assert unset == same
    assert unset[0] == faster[0]
    assert unset[1] != faster[1]


def test_a_learning_rate_of_the_heads_that_is_given_twice_is_refused() -> None:
    words = ["model.mcl.head_lr=1e-3", "fit.optim.lr_multipliers={'mcl.*': 2}"]
    with pytest.raises(ValueError, match=r"given twice: model.mcl.head_lr=0.001 and .*'mcl\.\*'"):
        load_config(TrainConfig, CONFIG, words)


def gradients(config: TrainConfig, is_checkpointed: bool) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients of one step by parameter, and how often the first block ran."""
    run = build_run(config, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    for parameter in run.model.parameters():  # away from the zeros that parts start with
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    switch_on(run.model, is_checkpointed, compile_blocks=False)
    calls: list[int] = []
    run.model.fdm.backbone.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    batch = collate_clips([run.train_clips[number] for number in range(2)])
    losses = world_model_step(run.model.train(), batch, torch.Generator().manual_seed(0))
    losses.total.backward()
    found = {name: p.grad for name, p in run.model.named_parameters() if p.grad is not None}
    return found, len(calls)


def test_exact_mcl_has_the_same_gradients_with_gradient_checkpointing(overrides: list[str]) -> None:
    settings = [*overrides, "model.mcl.mode=exact", "model.objective.mcl_weight=1", "validation.num_clips=0"]
    config = load_config(TrainConfig, CONFIG, settings)
    (plain, num_plain), (checkpointed, num_checkpointed) = (gradients(config, on) for on in (False, True))
    assert num_checkpointed > num_plain
    assert plain.keys() == checkpointed.keys()
    assert any(name.startswith("mcl.") for name in plain)
    for name, gradient in plain.items():
        # The same float32 operations run again: a relative 1e-5 of the largest entry is rounding.
        scale = max(float(gradient.abs().max()), 1e-6)
        torch.testing.assert_close(checkpointed[name], gradient, rtol=0, atol=1e-5 * scale, msg=name)
    unweighted = replace(config, model=replace(config.model, objective=ObjectiveConfig(mcl_weight=0.0)))
    without, _ = gradients(unweighted, True)
    block = "fdm.backbone.blocks.0.ffn.net.2.weight"
    assert not torch.allclose(
        plain[block], without[block], rtol=0, atol=1e-3 * float(plain[block].abs().max())
    )
