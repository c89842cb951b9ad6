import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState

from tests.support.toy_run import toy_fit
from worldmodel.training.loop.distributed import MachineConfig, resolve_parallel
from worldmodel.training.loop.order import process_slots

ROOT = Path(__file__).parents[4]
# Sums are taken in another order over processes; in float32 that moves a loss in its last digits.
TOLERANCE = 1e-6


def toy_rank(folder: Path, overrides: list[str], rank: int, port: int) -> None:
    """One process of a two-process run, as torchrun would start it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    )
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    result = toy_fit(folder, overrides)
    torch.distributed.destroy_process_group()
    assert result.is_finished


def run_two(folder: Path, overrides: list[str]) -> None:
    """Forked ranks: torchrun without the seconds of importing torch (the journey goes through torchrun)."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=toy_rank, args=(folder, overrides, rank, port)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["kind"] == "train"]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("one")
    toy_fit(folder, ["steps=8"])
    return losses(folder)


def test_two_ddp_processes_train_as_one(one_process: list[float], tmp_path: Path) -> None:
    run_two(tmp_path, ["steps=8", "machine.num_processes=2", "machine.parallel=ddp"])
    assert losses(tmp_path) == pytest.approx(one_process, rel=TOLERANCE)


def test_a_sharded_run_trains_as_one_and_resumes_on_one_process(
    one_process: list[float], tmp_path: Path
) -> None:
    run_two(tmp_path, ["steps=8", "machine.parallel=fsdp2", "validate_every=5"])
    assert losses(tmp_path) == pytest.approx(one_process, rel=TOLERANCE)
    for later in (tmp_path / "checkpoints").glob("step_0000000[4-9]"):
        later.rename(tmp_path / later.name)
    toy_fit(tmp_path, ["steps=8"], resume=True)
    assert losses(tmp_path) == pytest.approx(one_process, rel=TOLERANCE)


def test_a_launch_that_is_not_what_the_config_asks_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_processes=2, but 1 \(NO\) joined.*torchrun"):
        toy_fit(tmp_path, ["machine.num_processes=2"])
    with pytest.raises(ValueError, match=r"machine.parallel=fsdp2, but 1 process\(es\) joined"):
        toy_fit(tmp_path, ["machine.parallel=fsdp2"])


@pytest.mark.slow
def test_accelerate_launch_on_the_cpu_is_refused_when_it_drops_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    done = subprocess.run(
        [*command, "-m", "tests.support.toy_run", str(tmp_path), "machine.num_processes=2"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode != 0
    assert "machine.num_processes=2, but 1" in done.stderr


def test_fsdp_asked_of_the_launcher_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="launch file asks for FSDP"):
        toy_fit(tmp_path, [])


def test_a_launch_file_for_gpus_is_not_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # as every file of configs/accelerate
    monkeypatch.setenv("ACCELERATE_USE_CPU", "False")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"torch .* finds none: the driver .*machine.device=cpu"):
        toy_fit(tmp_path, ["machine.device=auto", "steps=1"])
    assert toy_fit(tmp_path, ["machine.device=cpu", "steps=1"]).is_finished


def test_auto_means_ddp_for_several_processes() -> None:
    assert resolve_parallel(MachineConfig(), 1) == "single"
    assert resolve_parallel(MachineConfig(), 8) == "ddp"
    assert resolve_parallel(MachineConfig(parallel="fsdp2"), 8) == "fsdp2"


def test_the_launch_file_alone_says_how_weights_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    auto, asked = MachineConfig(), MachineConfig(parallel="ddp")
    assert resolve_parallel(auto, 8) == "ddp"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert resolve_parallel(auto, 8) == "fsdp2"
    assert resolve_parallel(auto, 1) == "single"
    assert resolve_parallel(asked, 8) == "ddp"  # and such a launch is refused


def test_slots_are_shared_without_gaps_and_refused_otherwise() -> None:
    assert sorted(slot for rank in range(4) for slot in process_slots(8, rank, 4)) == list(range(8))
    with pytest.raises(ValueError, match=r"6 micro-batches .* which 4 processes cannot share"):
        process_slots(6, 0, 4)


@pytest.mark.parametrize("path", sorted((ROOT / "configs/accelerate").glob("*.yaml")), ids=lambda p: p.name)
def test_launch_files_say_what_their_name_says(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    *machines, gpus = path.name.partition("xh100")[0].split("x")
    assert content["num_machines"] == int(machines[0] if machines else 1)
    assert content["num_processes"] == content["num_machines"] * int(gpus)
    assert content["mixed_precision"] == "bf16"
    expected = {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}.get(path.stem.partition("_")[2], "NO")
    assert content["distributed_type"] == expected
