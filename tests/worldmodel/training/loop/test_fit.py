import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.host_reads import host_reads
from tests.support.toy_run import ToyData, toy_fit, toy_load, toy_model, toy_step
from worldmodel.training.loop import fit as fit_module
from worldmodel.training.loop.checkpoints import CheckpointStore, verify
from worldmodel.training.loop.fit import FitConfig, NonFiniteLossError, fit
from worldmodel.training.loop.optim import OptimConfig

ROOT = Path(__file__).parents[4]
SLOW_STEPS = ["steps=40", "checkpoint_every=4"]


def losses(folder: Path, kind: str = "train") -> dict[int, str]:
    """Step -> loss as hexadecimal, so that equality means every bit."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {r["step"]: float(r["loss"]).hex() for r in records if r["kind"] == kind}


def last_tensors(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(sorted((folder / "checkpoints").glob("step_*"))[-1] / f"{name}.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    assert losses(one) == losses(other)
    assert losses(one, "validation") == losses(other, "validation")
    for name in ("weights", "optimizer", "ema"):
        expected, found = last_tensors(one, name), last_tensors(other, name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected), name


def in_child(target: Callable[..., Any], *args: Any) -> Any:
    """Start a forked process: as killable as a fresh one, without the seconds of importing torch."""
    child = multiprocessing.get_context("fork").Process(target=target, args=args)
    child.start()
    return child


def wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while not (folder / "log.jsonl").exists() or max(losses_so_far(folder), default=0) < step:
        assert time.monotonic() < deadline, f"{folder} did not reach step {step}"
        time.sleep(0.002)


def losses_so_far(folder: Path) -> list[int]:
    lines = (folder / "log.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 40 steps."""
    folder = tmp_path_factory.mktemp("straight")
    assert toy_fit(folder, [*SLOW_STEPS, "validate_every=7"]).is_finished
    return folder


def kill_and_resume(folder: Path, kill_at: int) -> None:
    overrides = [*SLOW_STEPS, "validate_every=7"]
    child = in_child(toy_fit, folder, overrides)
    wait_for_step(folder, kill_at)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    toy_fit(folder, overrides, resume=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_killed_run_resumes_to_the_last_bit(seed: int, straight: Path, tmp_path: Path) -> None:
    kill_and_resume(tmp_path, random.Random(seed).randint(1, 36))
    assert_same_run(straight, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_killed_runs_resume_to_the_last_bit(seed: int, straight: Path, tmp_path: Path) -> None:
    kill_and_resume(tmp_path, random.Random(100 + seed).randint(1, 36))
    assert_same_run(straight, tmp_path)


def test_a_damaged_checkpoint_is_passed_over_on_resume(
    straight: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = [*SLOW_STEPS, "validate_every=7"]
    child = in_child(toy_fit, tmp_path, overrides)
    wait_for_step(tmp_path, 22)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    newest = sorted((tmp_path / "checkpoints").glob("step_*"))[-1]
    damage(newest / "optimizer.safetensors")
    toy_fit(tmp_path, overrides, resume=True)
    assert f"{newest.name}: optimizer.safetensors is damaged" in caplog.text
    assert_same_run(straight, tmp_path)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def test_sigterm_saves_and_the_rest_follows_after_resume(straight: Path, tmp_path: Path) -> None:
    overrides = [*SLOW_STEPS, "validate_every=7", "checkpoint_every=1000"]

    def stopped_run() -> None:
        sys.exit(0 if toy_fit(tmp_path, overrides).is_finished else 143)

    child = in_child(stopped_run)
    wait_for_step(tmp_path, 5)
    os.kill(child.pid, signal.SIGTERM)
    child.join()
    assert child.exitcode == 143
    checkpoint = CheckpointStore(tmp_path / "checkpoints", 3).last_good()
    assert checkpoint is not None
    assert 5 <= checkpoint.state["step"] < 40
    assert checkpoint.state["step"] == max(losses(tmp_path))
    assert toy_fit(tmp_path, overrides, resume=True).is_finished
    assert_same_run(straight, tmp_path)


VALIDATED = ["steps=6", "validate_every=2", "checkpoint_every=1000", "best_metric=loss"]


def best_and_metrics(folder: Path, result: Any) -> tuple[Any, ...]:
    return (folder / "checkpoints/best").read_text(), result.metrics, losses(folder, "validation")


def test_a_kill_between_a_checkpoint_and_its_mark_does_not_lose_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = best_and_metrics(tmp_path / "a", toy_fit(tmp_path / "a", VALIDATED))
    mark = CheckpointStore.mark_best
    for killed_at in {2, int(whole[0].removeprefix("step_"))}:  # the first and the last of the best

        def killed(store: CheckpointStore, step: int, killed_at: int = killed_at) -> None:
            if step == killed_at:
                raise KeyboardInterrupt
            mark(store, step)

        folder = tmp_path / f"killed{killed_at}"
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointStore, "mark_best", killed)
            with pytest.raises(KeyboardInterrupt):
                toy_fit(folder, VALIDATED)
        assert best_and_metrics(folder, toy_fit(folder, VALIDATED, resume=True)) == whole


@pytest.mark.parametrize("stopped_at", [4, 6])
def test_a_signal_in_a_step_that_is_validated_skips_no_validation(
    stopped_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = best_and_metrics(tmp_path / "a", toy_fit(tmp_path / "a", VALIDATED))
    calls = iter(range(1, 100))

    def step(*arguments: Any) -> Any:
        if next(calls) == 2 * stopped_at:  # two micro-batches a step
            os.kill(os.getpid(), signal.SIGTERM)
        return toy_step(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("tests.support.toy_run.toy_step", step)
        stopped = toy_fit(tmp_path / "b", VALIDATED)
    assert (stopped.step, max(losses(tmp_path / "b", "validation"))) == (stopped_at, stopped_at - 2)
    assert best_and_metrics(tmp_path / "b", toy_fit(tmp_path / "b", VALIDATED, resume=True)) == whole


def test_a_finished_run_that_is_asked_again_still_knows_its_metrics(tmp_path: Path) -> None:
    metrics = toy_fit(tmp_path, VALIDATED).metrics
    assert metrics
    assert toy_fit(tmp_path, VALIDATED, resume=True).metrics == metrics


def test_a_checkpoint_holds_up_training_for_a_copy_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = toy_fit(tmp_path / "plain", ["steps=5", "checkpoint_every=2"])
    times: dict[str, list[float]] = {"save": [], "_save": []}

    def timed(place: Any, name: str, delay: float = 0.0) -> None:
        inner = getattr(place, name)

        def call(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            time.sleep(delay)
            answer = inner(*arguments, **options)
            times[name].append(time.perf_counter() - started)
            return answer

        monkeypatch.setattr(place, name, call)

    timed(CheckpointStore, "save", delay=4)  # as 200 MB on a disk of 50 MB/s
    timed(fit_module, "_save")
    later = toy_fit(tmp_path / "later", ["steps=5", "checkpoint_every=2", "keep_checkpoints=9"])
    assert times["_save"][0] < 0.05 * times["save"][0]  # of step 2; the next one waits for it
    for step in (2, 4, 5):
        before = verify(tmp_path / f"plain/checkpoints/step_{step:08d}")
        after = verify(tmp_path / f"later/checkpoints/step_{step:08d}")
        assert before.state["files"] == after.state["files"]  # sizes and checksums
    assert (plain.step, later.step) == (5, 5)


def test_auto_checkpointing_is_refused_where_nothing_estimates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="auto is for world models"):
        toy_fit(tmp_path, ["gradient_checkpointing=auto"])


def test_a_folder_with_a_run_is_not_overwritten(straight: Path) -> None:
    with pytest.raises(ValueError, match="already holds a run: pass --resume"):
        toy_fit(straight, SLOW_STEPS)


def test_a_run_that_is_beyond_its_steps_is_not_taken_for_a_stopped_one(tmp_path: Path) -> None:
    toy_fit(tmp_path, VALIDATED)
    with pytest.raises(ValueError, match=r"is at step \d+, beyond fit.steps=1"):
        toy_fit(tmp_path, [*VALIDATED, "steps=1"], resume=True)


def test_resuming_another_model_says_what_differs(tmp_path: Path) -> None:
    toy_fit(tmp_path, ["steps=3"])
    config = FitConfig(steps=4, global_batch=4, micro_batch=4, trackers=())
    other = toy_model()
    other.action_head = torch.nn.Linear(16, 5)
    with pytest.raises(
        ValueError, match=r"action_head.weight has shape \(4, 16\), this model expects \(5, 16\)"
    ):
        fit(toy_step, other, ToyData(), config, tmp_path, load=toy_load, resume=True)


def test_nonfinite_steps_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = toy_fit(tmp_path, ["steps=10"], num_bad=2)
    assert 2 <= result.num_skipped < 10  # two bad items of 20, in batches of 8
    assert caplog.text.count("step skipped") == result.num_skipped
    assert all(
        tensor.isfinite().all()
        for name in ("weights", "ema")
        for tensor in last_tensors(tmp_path, name).values()
    )
    assert verify(tmp_path / "checkpoints/step_00000010").state["num_ema_updates"] == 10 - result.num_skipped


def test_nonfinite_steps_in_a_row_end_the_run_and_name_the_data(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"step 4: .*4 in a row.*came from: .*episode\d+\.hdf5"):
        toy_fit(tmp_path, ["max_nonfinite=4"], num_bad=20)
    # The checkpoint after three skipped steps holds the untouched initial weights.
    saved = last_tensors(tmp_path, "weights")
    assert all(torch.equal(saved[name], p) for name, p in toy_model().named_parameters() if p.requires_grad)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=88k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_keeps_the_previous_checkpoint(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ["steps=11", "keep_checkpoints=9"]
    with pytest.raises(OSError, match=r"step 11 could not be written .*No space left"):
        toy_fit(small_disk, overrides)
    store = CheckpointStore(small_disk / "checkpoints", 9)
    kept = store.last_good()
    assert kept is not None
    assert kept.path.name in ("step_00000003", "step_00000006")
    assert "step 9 could not be written ([Errno 28]" in caplog.text
    assert f"{kept.path.name} is kept" in caplog.text
    assert not list(store.folder.glob(".*"))
    subprocess.run(["mount", "-o", "remount,size=10m", small_disk], check=True)
    assert toy_fit(small_disk, overrides, resume=True).is_finished


def test_a_folder_that_turns_read_only_keeps_the_previous_checkpoint(
    small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make_read_only(*_: object) -> dict[str, float]:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        return {}

    (tmp_path / "checkpoints").symlink_to(small_disk)
    config = FitConfig(
        steps=5, global_batch=4, micro_batch=4, checkpoint_every=2, validate_every=3, trackers=()
    )
    with pytest.raises(
        OSError, match=r"step 5 could not be written .*Read-only file system.*step_00000002 is kept"
    ):
        fit(toy_step, toy_model(), ToyData(), config, tmp_path, load=toy_load, validate=make_read_only)
    assert "step 4 could not be written" in caplog.text
    assert verify(small_disk / "step_00000002").state["step"] == 2


def test_an_unwritable_folder_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        toy_fit(tmp_path / "file", [])
    assert not (tmp_path / "log.jsonl").exists()


def test_the_best_checkpoint_outlives_newer_ones(tmp_path: Path) -> None:
    values = {2: 3.0, 4: 1.0, 6: 2.0, 8: 5.0}
    config = FitConfig(
        steps=8,
        global_batch=4,
        micro_batch=4,
        checkpoint_every=2,
        validate_every=2,
        keep_checkpoints=1,
        trackers=(),
    )
    fit(
        toy_step,
        toy_model(),
        ToyData(),
        config,
        tmp_path,
        load=toy_load,
        validate=lambda model, step, accelerator, tracker: {"loss": values[step]},
    )
    store = CheckpointStore(tmp_path / "checkpoints", 1)
    assert store.best() == "step_00000004"
    assert sorted(path.name for path in store.folder.glob("step_*")) == ["step_00000004", "step_00000008"]
    assert (store.folder / "latest").read_text() == "step_00000008\n"


def test_validation_sees_the_averaged_weights(tmp_path: Path) -> None:
    seen = {}

    def validate(model: Any, step: int, accelerator: Any, tracker: Any) -> dict[str, float]:
        assert not model.training
        seen.update({name: p.clone() for name, p in model.named_parameters() if p.requires_grad})
        return {}

    config = FitConfig(
        steps=4, global_batch=4, micro_batch=4, trackers=(), optim=OptimConfig(lr=0.1, ema_decay=0.9)
    )
    fit(toy_step, toy_model(), ToyData(), config, tmp_path, load=toy_load, validate=validate)
    average, weights = last_tensors(tmp_path, "ema"), last_tensors(tmp_path, "weights")
    assert all(torch.equal(seen[name], average[name]) for name in average)
    assert not torch.equal(weights["action_head.weight"], average["action_head.weight"])


def test_the_host_waits_for_the_device_once_a_step(tmp_path: Path) -> None:
    found = []
    for steps in (2, 6):
        with host_reads() as reads:
            toy_fit(tmp_path / str(steps), [f"steps={steps}", "checkpoint_every=100"])
        found.append(reads)
    # In each of 4 steps the losses go to the CPU once. What is read as a list is there: these losses, and the
    # order of the data for both micro-batches.
    assert found[1] - found[0] == {"cpu": 4, "tolist": 4 * (1 + 2)}
