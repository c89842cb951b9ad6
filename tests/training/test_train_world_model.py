import errno
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from training.command_line import run_script
from training.encode_latents import main as encode_latents
from training.ship_model import ship
from training.stepper import switch_on
from training.train_autoencoder import AutoencoderConfig
from training.train_autoencoder import train as train_autoencoder
from training.train_world_model import train
from training.world_model_run import TrainConfig, build_run
from worldmodel.config import load_config
from worldmodel.data.dataset import collate_clips
from worldmodel.data.synthetic import synthetic_source
from worldmodel.models.world_model import WorldModel
from worldmodel.models.world_model_config import ObjectiveConfig
from worldmodel.objectives.world_model_loss import world_model_step
from worldmodel.types import Episode, EpisodeSource

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs/debug/world_model.yaml")
# Over processes sums are taken in another order; in float32 that moves a loss in its last digits.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny autoencoder and its latents, and what points a run at them."""
    folder = tmp_path_factory.mktemp("world_model")
    path = str(ROOT / "configs/debug/autoencoder.yaml")
    assert train_autoencoder(load_config(AutoencoderConfig, path, [f"output={folder}"]), resume=False)
    found = [f"model.vae={folder / 'vae'}", f"data.latents={folder / 'latents'}", "fit.trackers=[]"]
    assert encode_latents([CONFIG, *found]) == 0
    return found


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


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records]


def train_forked(rank: int, port: int, arguments: list[str]) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    )
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    sys.exit(0 if train(load_config(TrainConfig, CONFIG, arguments), False) else 143)


def run_two(arguments: list[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train_forked, args=(rank, port, arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(200)
    assert [process.exitcode for process in ranks] == [0, 0]


SHARED = [
    "fit.steps=2",
    "fit.micro_batch=2",
    "fit.gradient_checkpointing=true",
    "model.mcl.mode=finite_difference",
]


@pytest.fixture(scope="module")
def one_process(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    assert train(load_config(TrainConfig, CONFIG, [*overrides, *SHARED, f"output={folder}"]), False)
    return folder


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_two_processes_have_the_losses_of_one(
    parallel: str, one_process: Path, overrides: list[str], tmp_path: Path
) -> None:
    run_two([*overrides, *SHARED, f"fit.machine.parallel={parallel}", f"output={tmp_path}"])
    assert losses(tmp_path) == pytest.approx(losses(one_process), rel=TOLERANCE)
    one, two = (load_file(path / "model/action_interface.safetensors") for path in (one_process, tmp_path))
    assert all(torch.allclose(one[key], two[key], atol=1e-6) for key in one)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
@pytest.mark.parametrize("extra", [["model.regime=lacg"], ["model.lora.rank=2"]])
def test_a_run_through_torchrun_has_the_losses_of_one_process(
    parallel: str, extra: list[str], overrides: list[str], tmp_path: Path
) -> None:
    shared = [*overrides, *extra, "fit.micro_batch=2"]
    assert train(load_config(TrainConfig, CONFIG, [*shared, f"output={tmp_path / 'one'}"]), False)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command += ["training/train_world_model.py", CONFIG, *shared, f"output={tmp_path / 'two'}"]
    command += ["fit.machine.num_processes=2", f"fit.machine.parallel={parallel}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert f"2 process(es), MULTI_CPU, parallel {parallel}" in done.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=TOLERANCE)


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_written(
    one_process: Path, overrides: list[str], tmp_path: Path
) -> None:
    before = (one_process / "config.yaml").read_text()
    again = [*overrides, f"output={one_process}", f"data.latents={tmp_path / 'latents'}"]
    with pytest.raises(ValueError, match="already holds a run: pass --resume"):
        train(load_config(TrainConfig, CONFIG, again), False)
    assert (one_process / "config.yaml").read_text() == before
    assert not (tmp_path / "latents").exists()


def test_a_stopped_and_resumed_run_ends_in_the_same_model(overrides: list[str], tmp_path: Path) -> None:
    shared = [*overrides, "model.regime=lacg", "fit.steps=12", "validation.num_clips=0"]
    straight = load_config(TrainConfig, CONFIG, [*shared, f"output={tmp_path / 'straight'}"])
    assert train(straight, False)
    arguments = [*shared, "fit.checkpoint_every=100", f"output={tmp_path / 'stopped'}"]
    child = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(run_script(TrainConfig, train, "", [CONFIG, *arguments]))
    )
    child.start()
    wait_until(lambda: (tmp_path / "stopped/log.jsonl").exists() and len(losses(tmp_path / "stopped")) >= 3)
    os.kill(child.pid or 0, signal.SIGTERM)
    child.join()
    assert child.exitcode == 143
    assert not (tmp_path / "stopped/model").exists()
    assert run_script(TrainConfig, train, "", [CONFIG, *arguments, "--resume"]) == 0
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")
    one, two = (WorldModel.from_pretrained(tmp_path / name / "model") for name in ("straight", "stopped"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


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
    with pytest.raises(ValueError, match=f"belongs to a run on other data: .*{message}"):
        train(load_config(TrainConfig, CONFIG, other), True)
    assert (folder / "config.yaml").read_text() == before


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_fine_tuning_adds_embodiments_and_an_objective(overrides: list[str], tmp_path: Path) -> None:
    short = [*overrides, "fit.steps=1"]
    first = [*short, "model.regime=lacg", f"output={tmp_path / 'first'}", "data.synthetic_embodiments=1"]
    assert train(load_config(TrainConfig, CONFIG, first), False)
    second = [*short, f"start_from={tmp_path / 'first/model'}", f"output={tmp_path / 'second'}"]
    second += ["data.synthetic_embodiments=2", "model.mcl.mode=detached", "model.objective.mcl_weight=0.5"]
    assert train(load_config(TrainConfig, CONFIG, second), False)
    model = WorldModel.from_pretrained(tmp_path / "second/model")
    assert model.normalizer.embodiments == ("robot0", "robot1")
    assert (model.config.regime, model.config.objective.mcl_weight) == ("lacg", 0.5)
    assert model.mcl is not None
    assert model.embodiment_classifier is not None


def test_a_full_disk_in_validation_does_not_end_the_run(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("training.validation.write_video", full)
    config = load_config(TrainConfig, CONFIG, [*overrides, "fit.steps=1", f"output={tmp_path}"])
    assert train(config, False)
    assert "rollout step_00000001_clip0 was not written: [Errno 28]" in caplog.text
    assert json.loads((tmp_path / "metrics.json").read_text())["rollout_psnr"] > 0
    assert not list(tmp_path.rglob("*.mp4"))


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


def test_a_finished_run_ships_in_half_the_size(
    overrides: list[str], one_process: Path, tmp_path: Path
) -> None:
    size = ship(one_process, tmp_path / "shipped")
    assert size == sum(path.stat().st_size for path in (tmp_path / "shipped").rglob("*") if path.is_file())
    assert (tmp_path / "shipped/curves.png").stat().st_size > 1000
    whole, half = (WorldModel.from_pretrained(path) for path in (one_process / "model", tmp_path / "shipped"))
    weights = {name: value for name, value in whole.state_dict().items() if value.is_floating_point()}
    for name, value in half.state_dict().items():
        assert value.dtype == weights[name].dtype
        torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-6)
    stored = load_file(tmp_path / "shipped/transformer/diffusion_pytorch_model.safetensors").values()
    assert {value.dtype for value in stored} == {torch.float16}
    with pytest.raises(ValueError, match="not a finished run"):
        ship(tmp_path, tmp_path / "other")


def test_fine_tuning_on_other_frames_is_refused(
    one_process: Path, overrides: list[str], tmp_path: Path
) -> None:
    other = [*overrides, f"start_from={one_process / 'model'}", "data.clip.height=64", f"output={tmp_path}"]
    with pytest.raises(ValueError, match="expected frames of 32x32 pixels, got 64x32"):
        train(load_config(TrainConfig, CONFIG, other), False)


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

    monkeypatch.setattr("training.data.synthetic_source", changed)
    other = [*overrides, f"start_from={one_process / 'model'}", f"output={tmp_path / 'new'}"]
    with pytest.raises(ValueError, match=message):
        train(load_config(TrainConfig, CONFIG, other), False)
    assert not (tmp_path / "new/config.yaml").exists()


def test_show_prints_the_resolved_config_and_help_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script(TrainConfig, train, "", [CONFIG, "fit.steps=7", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "steps: 7" in shown
    assert "lr_multipliers" in shown
    with pytest.raises(SystemExit):
        run_script(TrainConfig, train, "", ["--help"])
    printed = capsys.readouterr().out
    assert "fit.optim.warmup_steps=0    steps of linear rise from 0" in printed
    assert "data.clip.num_frames=17    frames T of a clip" in printed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fit.step=7", "step"),
        ("model.vae=", "model.vae must name an autoencoder"),
        ("data.paths=[nowhere]", "either paths or synthetic_episodes"),
        ("fit.micro_batch=3", "global_batch must be a multiple of micro_batch"),
        ("model.mcl.mode=exact fit.compile=true", "torch.compile has no second derivatives"),
        ("model.mcl.mode=jvp fit.gradient_checkpointing=true", "no forward-mode derivatives"),
        ("model.mcl.mode=exact fit.machine.parallel=fsdp2", "sharded weights do not"),
        ("fit.machine.num_processes=2", "machine.num_processes=2, but 1"),
    ],
)
def test_a_wrong_config_ends_with_one_line_and_code_2(
    override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(TrainConfig, train, "", [CONFIG, *override.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


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


@pytest.fixture
def fresh_accelerator() -> Iterator[None]:
    """Precision is a setting of the process: each run of the test starts from none."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_accelerator")
@pytest.mark.parametrize("mode", ["", "exact"])
def test_bfloat16_trains_near_float32(mode: str, overrides: list[str], tmp_path: Path) -> None:
    settings = [*overrides, "fit.steps=2", "validation.num_clips=0"]
    settings += [f"model.mcl.mode={mode}"] if mode else []
    for precision in ("auto", "bf16"):  # auto is float32 on a CPU
        AcceleratorState._reset_state(reset_partial_state=True)
        chosen = [f"fit.machine.mixed_precision={precision}", f"output={tmp_path / precision}"]
        assert train(load_config(TrainConfig, CONFIG, [*settings, *chosen]), False)
        assert AcceleratorState().mixed_precision == {"auto": "no"}.get(precision, precision)
    exact, rounded = losses(tmp_path / "auto"), losses(tmp_path / "bf16")
    assert len(rounded) == 2
    assert torch.tensor(rounded).isfinite().all()
    # bfloat16 keeps 8 bits of a number, about 0.4 %; a loss is a mean over many.
    assert rounded == pytest.approx(exact, rel=0.02)
    assert rounded != exact


@pytest.mark.slow
def test_latents_encoded_by_two_processes_are_complete(overrides: list[str], tmp_path: Path) -> None:
    cache = f"data.latents={tmp_path / 'latents'}"
    assert encode_latents([CONFIG, *overrides, cache, "--processes", "2"]) == 0
    assert len(list((tmp_path / "latents").rglob("*.safetensors"))) == 4


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_a_plain_one(overrides: list[str], tmp_path: Path) -> None:
    for name, is_on in (("plain", "false"), ("compiled", "true")):
        arguments = [*overrides, "fit.steps=2", f"fit.compile={is_on}", f"output={tmp_path / name}"]
        assert train(load_config(TrainConfig, CONFIG, arguments), False)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)
