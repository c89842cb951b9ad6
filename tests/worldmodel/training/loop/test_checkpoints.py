import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from worldmodel import files
from worldmodel.cli_errors import CommandError
from worldmodel.training.loop.checkpoints import CheckpointStore, export_finished, verify

TENSORS = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3, dtype=torch.int64)},
    "ema": {},
}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", num_kept=2)
    store.prepare()
    return store


def test_tensors_and_counters_come_back(store: CheckpointStore) -> None:
    store.save(7, TENSORS, {"num_skipped": 3})
    found = store.last_good()
    assert found is not None
    assert (found.state["step"], found.state["num_skipped"]) == (7, 3)
    assert all(torch.equal(found.tensors("weights")[k], v) for k, v in TENSORS["weights"].items())
    assert found.tensors("ema") == {}


def test_the_newest_are_kept_and_latest_points_at_the_last(store: CheckpointStore) -> None:
    for step in (1, 2, 3, 4):
        store.save(step, TENSORS, {})
    assert sorted(p.name for p in store.folder.iterdir()) == ["latest", "step_00000003", "step_00000004"]
    assert (store.folder / "latest").read_text() == "step_00000004\n"


@pytest.mark.parametrize("fault", ["truncate", "flip", "remove", "no_state", "bad_json"])
def test_damage_is_found_and_passed_over(
    fault: str, store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(1, TENSORS, {})
    newest = store.save(2, TENSORS, {})
    weights, state = newest / "weights.safetensors", newest / "state.json"
    if fault == "truncate":
        os.truncate(weights, weights.stat().st_size - 1)
    elif fault == "flip":
        weights.write_bytes(bytes([*weights.read_bytes()[:-1], 255]))
    elif fault == "remove":
        weights.unlink()
    elif fault == "no_state":
        state.unlink()
    else:
        state.write_text(state.read_text()[:-5])
    found = store.last_good()
    assert found is not None
    assert found.path.name == "step_00000001"
    assert "step_00000002" in caplog.text


@pytest.mark.parametrize(
    "broken",
    ["files.save_file", "training.loop.checkpoints.write_json", "training.loop.checkpoints.sync_folder"],
)
def test_an_error_at_any_point_of_writing_leaves_the_old_one(
    broken: str, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(1, TENSORS, {})

    def fail(*_: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"worldmodel.{broken}", fail)
    with pytest.raises(OSError, match="No space left"):
        store.save(2, TENSORS, {})
    monkeypatch.undo()
    found = store.last_good()
    assert found is not None
    assert found.path.name == "step_00000001"
    assert not list(store.folder.glob(".*"))


def test_half_written_folders_of_a_killed_run_are_cleared(store: CheckpointStore) -> None:
    (store.folder / ".writing_step_00000009").mkdir()
    (store.folder / ".writing_step_00000009" / "weights.safetensors").write_bytes(b"half")
    store.prepare()
    assert list(store.folder.iterdir()) == []


def test_files_are_safetensors_and_json_only(store: CheckpointStore) -> None:
    path = store.save(1, TENSORS, {"best": None})
    assert sorted(p.name for p in path.iterdir()) == ["state.json", "weights.safetensors"]
    assert json.loads((path / "state.json").read_text())["best"] is None
    assert verify(path).state["files"].keys() == {"weights.safetensors"}


def test_a_kill_in_the_export_cannot_lose_the_best(store: CheckpointStore) -> None:
    for step in (1, 2):
        store.save(step, TENSORS, {})
    store.mark_best(1)
    written: list[tuple[str, str]] = []
    export_finished(store, {}, lambda saved, folder: written.append((saved.path.name, folder.name)))
    # Who finds the model takes the run for done.
    assert written == [("step_00000001", "best"), ("step_00000002", "model")]


@pytest.mark.parametrize(
    "state",
    ["[]", '{"files": []}', '{"files": null}', '"x"', "[" * 100_000, '{"files": {}, "step": "x"}'],
)
def test_a_description_of_another_kind_is_damage_too(store: CheckpointStore, state: str) -> None:
    store.save(1, TENSORS, {})
    (store.save(2, TENSORS, {}) / "state.json").write_text(state)
    found = store.last_good()
    assert found is not None
    assert found.path.name == "step_00000001"


def test_another_process_does_not_write_beside_us(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.2)
    process = os.fork()
    if not process:
        try:
            CheckpointStore(store.folder, 2).prepare()
        except ValueError as error:
            os._exit(3 if "another process writes to it" in str(error) else 4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 3


def test_a_diverged_run_writes_no_model_that_nobody_could_load(store: CheckpointStore) -> None:
    store.save(1, {"weights": {"a": torch.tensor([1.0, float("inf")])}}, {"seed": 0})
    with pytest.raises(CommandError, match="a holds NaN or infinity: the training diverged") as ended:
        export_finished(store, {}, lambda checkpoint, folder: folder.mkdir())
    assert ended.value.exit_code == 1
    assert not (store.folder.parent / "model").exists()


def test_killed_ten_times_while_a_thread_writes_the_previous_one_loads(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(1, TENSORS, {})
    write, many = files.write_tensors, {f"file{number}": TENSORS["weights"] for number in range(20)}

    def slow(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        time.sleep(0.05)
        write(path, tensors)

    monkeypatch.setattr("worldmodel.training.loop.checkpoints.write_tensors", slow)
    for kill in range(10):
        started, child = time.monotonic(), os.fork()
        if not child:
            ThreadPoolExecutor(1).submit(store.save, 2, many, {})
            time.sleep(60)
            os._exit(0)
        partial = store.folder / ".writing_step_00000002"
        while len(list(partial.glob("*"))) <= 1 + kill and time.monotonic() < started + 30:
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert partial.is_dir()
        found = store.last_good()
        assert found is not None
        assert found.path.name == "step_00000001"
        assert torch.equal(found.tensors("weights")["a"], TENSORS["weights"]["a"])
