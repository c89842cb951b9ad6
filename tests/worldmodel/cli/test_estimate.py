import gc
import resource
import subprocess
import sys

import pytest

from worldmodel.cli import main
from worldmodel.cli.estimate import _no_garbage_in_imports


def test_the_collector_rests_during_imports_of_a_fresh_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()
    monkeypatch.setitem(sys.modules, "torch", sys)
    with _no_garbage_in_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    monkeypatch.delitem(sys.modules, "torch")
    try:
        with _no_garbage_in_imports():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "full"])
def test_the_whole_command_answers_in_seconds(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = f"from worldmodel.cli import main; main(['estimate', 'wan/{name}', '--gpus', '4xH100'])"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert "of 80" in done.stdout
    assert seconds < 15, seconds  # 7 to 8, imports included


def test_a_run_that_starts_from_a_local_model_is_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    desk = ["estimate", "desk/demo", "--gpus", "1xCPU", "--action-dim", "16"]
    assert main(desk) == 0
    assert "rollout" in capsys.readouterr().out
    assert main([*desk, "start_from=no/model"]) == 2
    assert "start_from=no/model: name a local folder that holds its backbone" in capsys.readouterr().err
