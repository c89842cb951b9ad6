import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.toy_run import ToyData, toy_load, toy_model, toy_step
from worldmodel.training.loop.fit import FitConfig, FitResult, fit
from worldmodel.training.loop.state import differences

SAVED = {"fps": 10.0, "robot": {"names": ["x", "y"], "q01": [0.1, 0.2]}}


def run(
    folder: Path, steps: int, identity: dict[str, Any] | None, resume: bool = True, seed: int = 0
) -> FitResult:
    config = FitConfig(steps=steps, global_batch=4, micro_batch=4, seed=seed, trackers=())
    return fit(
        toy_step, toy_model(), ToyData(), config, folder, load=toy_load, resume=resume, identity=identity
    )


def test_differences_are_named_and_rounding_is_none() -> None:
    rounded = {"fps": 10.0, "robot": {"names": ["x", "y"], "q01": [0.1 + 1e-9, 0.2]}}
    assert list(differences(SAVED, rounded)) == []
    other = {"fps": 5.0, "robot": {"names": ["y", "x"], "q01": [0.1, 0.2]}, "arm": {"names": ["z"]}}
    assert list(differences(SAVED, other)) == [
        "fps was 10.0, now is 5.0",
        'robot.names was ["x", "y"], now is ["y", "x"]',
        'arm was absent, now is {"names": ["z"]}',
    ]
    assert list(differences({"q": [1.0]}, {"q": [1.0, 2.0]})) == ["q was [1.0], now is [1.0, 2.0]"]


def test_a_resume_on_other_data_is_refused_and_more_steps_are_not(tmp_path: Path) -> None:
    run(tmp_path, 1, SAVED, resume=False)
    changed = {**SAVED, "fps": 5.0}
    with pytest.raises(ValueError, match=r"step_00000001 belongs to another run: fps was 10\.0, now is 5\.0"):
        run(tmp_path, 2, changed)
    assert run(tmp_path, 2, SAVED).step == 2


@pytest.mark.parametrize("identity", [SAVED, None])
def test_a_resume_with_another_seed_is_refused(identity: dict[str, Any] | None, tmp_path: Path) -> None:
    run(tmp_path, 1, identity, resume=False, seed=3)
    with pytest.raises(ValueError, match=r"belongs to another run: seed was 3, now is 4\. Use the seed"):
        run(tmp_path, 2, identity, seed=4)
    assert run(tmp_path, 2, identity, seed=3).step == 2


def test_what_an_older_version_did_not_record_may_be_anything(tmp_path: Path) -> None:
    run(tmp_path, 1, SAVED, resume=False)
    assert run(tmp_path, 2, {**SAVED, "start_from": "a"}).step == 2
    with pytest.raises(ValueError, match='start_from was "a", now is "b"'):
        run(tmp_path, 3, {**SAVED, "start_from": "b"})
    with pytest.raises(ValueError, match='start_from was "a", now is absent'):
        run(tmp_path, 3, SAVED)


def test_a_checkpoint_that_does_not_say_its_data_resumes(tmp_path: Path) -> None:
    run(tmp_path, 1, SAVED, resume=False)
    state = tmp_path / "checkpoints/step_00000001/state.json"
    values = json.loads(state.read_text())
    del values["identity"]
    state.write_text(json.dumps(values))
    assert run(tmp_path, 2, {**SAVED, "fps": 5.0}).step == 2
