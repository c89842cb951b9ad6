import errno
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from tests.support.debug_run import CONFIG, MCL, ROOT, SHARED, losses
from worldmodel.config import load_config
from worldmodel.models.model import WorldModel
from worldmodel.training.command_line import run_script
from worldmodel.training.encode_latents import main as encode_latents
from worldmodel.training.export import ship
from worldmodel.training.world_model import TrainConfig, train

# Over processes sums are taken in another order; in float32 that moves a loss in its last digits.
TOLERANCE = 1e-5
CAUSAL = ["model.causal=true", "model.objective.forcing=prefix", "model.objective.sink_jump=0.5"]


def train_forked(rank: int, port: int, arguments: list[str]) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    )
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    sys.exit(0 if train(load_config(TrainConfig, CONFIG, arguments), False) else 143)


def train_alone(arguments: list[str]) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
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


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_two_processes_have_the_losses_of_one(parallel: str, overrides: list[str], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    # All are forked from here: what earlier tests left in this process is the same for one and for two.
    alone = multiprocessing.get_context("fork").Process(
        target=train_alone, args=([*overrides, *SHARED, f"output={one}"],)
    )
    alone.start()
    alone.join(200)
    assert alone.exitcode == 0
    run_two([*overrides, *SHARED, f"fit.machine.parallel={parallel}", f"output={two}"])
    assert losses(two) == pytest.approx(losses(one), rel=TOLERANCE)
    weights = [load_file(path / "model/interface.safetensors") for path in (one, two)]
    assert all(torch.allclose(weights[0][key], weights[1][key], atol=1e-6) for key in weights[0])


def test_replicas_and_shards_contrast_alike(overrides: list[str], tmp_path: Path) -> None:
    for parallel in ("ddp", "fsdp2"):
        settings = [*overrides, *SHARED, *MCL, "fit.global_batch=8", f"output={tmp_path / parallel}"]
        run_two([*settings, f"fit.machine.parallel={parallel}"])
    replicas, shards = losses(tmp_path / "ddp"), losses(tmp_path / "fsdp2")
    assert shards == pytest.approx(replicas, rel=1e-4)  # training and validation


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
@pytest.mark.parametrize("extra", [["model.regime=lacg"], ["model.lora.rank=2"]])
def test_a_run_through_torchrun_has_the_losses_of_one_process(
    parallel: str, extra: list[str], overrides: list[str], tmp_path: Path
) -> None:
    shared = [*overrides, *extra, "fit.micro_batch=2"]
    assert train(load_config(TrainConfig, CONFIG, [*shared, f"output={tmp_path / 'one'}"]), False)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command += ["-m", "worldmodel", "train", CONFIG, *shared, f"output={tmp_path / 'two'}"]
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


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_full_disk_in_validation_does_not_end_the_run(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("worldmodel.training.validation.write_video", full)
    config = load_config(TrainConfig, CONFIG, [*overrides, "fit.steps=1", f"output={tmp_path}"])
    assert train(config, False)
    assert "rollout step_00000001_clip0 was not written: [Errno 28]" in caplog.text
    assert json.loads((tmp_path / "metrics.json").read_text())["rollout_psnr"] > 0
    assert not list((tmp_path / "rollouts").glob("*.mp4"))


def test_a_finished_run_ships_in_half_the_size(
    overrides: list[str], one_process: Path, tmp_path: Path
) -> None:
    size = ship(one_process, tmp_path / "shipped")
    assert size == sum(path.stat().st_size for path in (tmp_path / "shipped").rglob("*") if path.is_file())
    assert (tmp_path / "shipped/curves.png").stat().st_size > 1000
    whole, half = (WorldModel.from_pretrained(path) for path in (one_process / "model", tmp_path / "shipped"))
    assert whole.trained_on is not None
    assert [episode.uid for episode in whole.trained_on.episodes] == ["episode0", "episode1", "episode2"]
    assert half.trained_on == whole.trained_on
    weights = {name: value for name, value in whole.state_dict().items() if value.is_floating_point()}
    for name, value in half.state_dict().items():
        assert value.dtype == weights[name].dtype
        torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-6)
    stored = load_file(tmp_path / "shipped/transformer/diffusion_pytorch_model.safetensors").values()
    assert {value.dtype for value in stored} == {torch.float16}
    with pytest.raises(ValueError, match="not a finished run"):
        ship(tmp_path, tmp_path / "other")


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
        ("data.paths=[nowhere]", "either paths or synthetic_episodes, got ['nowhere'] and 4"),
        ("data.synthetic_episodes=0", "no data to train on: set data.paths=[FOLDER]"),
        ("fit.micro_batch=3", "global_batch must be a multiple of micro_batch"),
        ("model.mcl.mode=exact fit.compile=true", "torch.compile has no second derivatives"),
        ("model.mcl.mode=jvp fit.gradient_checkpointing=true", "no forward-mode derivatives"),
        ("model.mcl.mode=exact fit.machine.parallel=fsdp2", "set mcl.mode=first_order"),
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


@pytest.fixture
def fresh_accelerator() -> Iterator[None]:
    """Precision is a setting of the process: each run of the test starts from none."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_accelerator")
@pytest.mark.parametrize("mode", ["", "exact", "first_order"])
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
@pytest.mark.parametrize("extra", [[], CAUSAL, MCL])
def test_a_compiled_run_has_the_losses_of_a_plain_one(
    extra: list[str], overrides: list[str], tmp_path: Path
) -> None:
    for name, is_on in (("plain", "false"), ("compiled", "true")):
        arguments = [*overrides, *extra, "fit.steps=2", f"fit.compile={is_on}", f"output={tmp_path / name}"]
        # In a process of its own: torch.compile cannot trace functions whose shapes are checked by the tests.
        command = [sys.executable, "-m", "worldmodel", "train", CONFIG, *arguments]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)
