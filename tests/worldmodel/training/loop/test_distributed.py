import json
import os
import subprocess
import sys
import time
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter

from tests.support.toy_run import toy_fit
from tests.support.two_processes import in_two_processes, start_two_processes
from worldmodel.training.loop.checkpoints import Checkpoint, CheckpointStore, verify
from worldmodel.training.loop.distributed import MachineConfig, resolve_parallel
from worldmodel.training.loop.order import process_slots
from worldmodel.training.loop.shards import write_shards

ROOT = Path(__file__).parents[4]
# Sums are taken in another order over processes; in float32 that moves a loss in its last digits.
TOLERANCE = 1e-6


def start_two(folder: Path, overrides: list[str], resume: bool = False) -> list[ForkProcess]:
    return start_two_processes(lambda: toy_fit(folder, overrides, resume).is_finished)


def run_two(folder: Path, overrides: list[str], resume: bool = False) -> None:
    in_two_processes(lambda: toy_fit(folder, overrides, resume).is_finished)


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


SHARDED = ["steps=8", "machine.parallel=fsdp2"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The last checkpoint of a sharded run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("sharded")
    run_two(folder, SHARDED)
    return verify(folder / "checkpoints/step_00000008")


def test_each_process_writes_its_own_part(sharded: Checkpoint) -> None:
    kinds = {path.suffix for path in sharded.path.rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}
    parts = [load_file(path) for path in sorted((sharded.path / "weights").iterdir())]
    assert len(parts) == 2
    names = [{name: tuple(x.shape) for name, x in part.items() if x.ndim == 2} for part in parts]
    assert names[0] == names[1]
    assert set(names[0].values()) == {(8, 16), (2, 16)}  # of 16 and 4 rows
    assert sharded.tensors("weights")["blocks.0.linear.weight"].shape == (16, 16)


def kill_in_mid_write(folder: Path, written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes, when so many of the three parts of the checkpoint of step 6 have been begun."""

    def slow(place: Path, *arguments: Any) -> None:
        time.sleep(0.2 if "00000006" in str(place) else 0.0)
        write_shards(place, *arguments)

    monkeypatch.setattr("worldmodel.training.loop.checkpoints.write_shards", slow)
    ranks, partial = start_two(folder, SHARDED), folder / "checkpoints/.writing_step_00000006"
    deadline = time.monotonic() + 60
    while not (partial.is_dir() and len(list(partial.iterdir())) >= written) and time.monotonic() < deadline:
        time.sleep(0.002)
    for rank in ranks:
        rank.kill()
        rank.join()
    monkeypatch.undo()
    assert partial.is_dir()


@pytest.mark.parametrize("written", [1, 3])
def test_a_sharded_run_killed_in_mid_write_goes_on_from_the_checkpoint_before(
    sharded: Checkpoint, tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_in_mid_write(tmp_path, written, monkeypatch)
    found = CheckpointStore(tmp_path / "checkpoints", 3).last_good()
    assert found is not None
    assert found.path.name == "step_00000003"
    run_two(tmp_path, SHARDED, resume=True)
    again = verify(tmp_path / "checkpoints/step_00000008")
    for file in ("weights", "optimizer", "ema"):
        whole = sharded.tensors(file)
        assert whole.keys() == again.tensors(file).keys()
        assert all(torch.equal(value, again.tensors(file)[name]) for name, value in whole.items()), file


def test_a_full_disk_of_one_process_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(HuggingFaceStorageWriter):
        def write_data(self, plan, planner):
            if "00000003" in str(self.path) and os.environ["RANK"] == "1":
                raise OSError(28, "No space left on device")
            return super().write_data(plan, planner)

    monkeypatch.setattr("worldmodel.training.loop.shards.HuggingFaceStorageWriter", Full)
    run_two(tmp_path, ["steps=8", "machine.parallel=fsdp2", "checkpoint_every=1", "keep_checkpoints=9"])
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("*step_*"))
    assert kept == [f"step_0000000{step}" for step in (1, 2, 4, 5, 6, 7, 8)]


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
