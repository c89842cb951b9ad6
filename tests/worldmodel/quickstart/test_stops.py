"""A quickstart that is stopped or killed in any part goes on with the same command, and ends equal."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.worldmodel.quickstart.test_run import write_moving_boxes
from worldmodel.files import fingerprint
from worldmodel.quickstart import run as quickstart
from worldmodel.quickstart.budget import Budget, Speeds
from worldmodel.quickstart.commands import Quickstart

PROGRAM = """
import sys
from pathlib import Path
import worldmodel.quickstart.run as quickstart
from worldmodel.quickstart.budget import Budget
from worldmodel.quickstart.commands import Quickstart
quickstart.share_out = lambda minutes, spent, speeds, clips: Budget(speeds, 8, 8, 1.0)
quickstart.HELD_OUT = quickstart.HeldOutConfig(episodes=3, clips_per_episode=1)
quickstart.run(Quickstart(sys.argv[1], Path(sys.argv[2]), 1.0, "desk/own_robot"))
"""
PARTS: dict[str, Callable[[Path], bool]] = {  # part -> whether it is under way
    "encoding": lambda out: any((out / "latents").rglob("*.safetensors")),
    "base": lambda out: (out / "run/checkpoints/step_00000002").exists(),
    "predictions": lambda out: any((out / "run_predictions").glob("*.safetensors")),
    "head": lambda out: (out / "head/checkpoints/step_00000002").exists(),
    "rollout": lambda out: (out / "rollouts/clips.jsonl").exists(),
    "sensitivity": lambda out: (out / "sensitivity/clips.jsonl").exists(),
}
RESULTS = ("rollouts/results.json", "sensitivity/sensitivity.json")


def start(data: Path, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(data), str(out)]
    with (out.parent / "said.txt").open("a") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {name: json.loads((out / name).read_text()) for name in RESULTS}
    return found | {run: fingerprint(out / run / "model", (".safetensors",)) for run in ("run", "head")}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_stopped_in_every_part_it_ends_as_undisturbed(first: signal.Signals, tmp_path: Path) -> None:
    data, out = write_moving_boxes(tmp_path / "boxes", 24, 60), tmp_path / "out"
    sent = cycle((first, signal.SIGTERM if first == signal.SIGKILL else signal.SIGKILL))
    for part, number in zip(PARTS, sent, strict=False):
        running = start(data, out)
        while running.poll() is None and not PARTS[part](out):
            time.sleep(0.002)
        assert running.poll() is None, (
            f"it ended before {part}: {(tmp_path / 'said.txt').read_text()[-2000:]}"
        )
        running.send_signal(number)
        assert running.wait(300) != 0, part
    assert start(data, out).wait(600) == 0, (tmp_path / "said.txt").read_text()[-2000:]
    disturbed = results(out)
    notes = (out / "quickstart.json").read_text()  # what was timed and decided
    shutil.rmtree(out)
    out.mkdir()
    (out / "quickstart.json").write_text(notes)
    assert start(data, out).wait(900) == 0, (tmp_path / "said.txt").read_text()[-2000:]
    assert results(out) == disturbed


def test_what_was_decided_is_not_decided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Quickstart(
        str(write_moving_boxes(tmp_path / "boxes", 5, 30)), tmp_path / "out", 9.0, "desk/own_robot"
    )
    speeds, given = iter((Speeds(0.5, 0.3, 0.05),)), []

    def command(name: str, arguments: list[str], *_: object, **__: object) -> None:
        given.append((name, arguments))
        if len(given) == 2:  # base, then head: killed there
            raise KeyboardInterrupt

    monkeypatch.setattr(quickstart, "try_speeds", lambda *_: next(speeds))  # once
    monkeypatch.setattr(quickstart, "command", command)
    for _ in range(2):
        with pytest.raises((KeyboardInterrupt, FileNotFoundError, ValueError)):
            quickstart.run(asked, lambda _: None)
    names = [name for name, _ in given]
    assert names[:4] == ["train"] * 4
    assert given[0] == given[2]
    assert given[1] == given[3]
    budget = json.loads((tmp_path / "out/quickstart.json").read_text())["budget"]
    known = Budget(**{**budget, "speeds": Speeds(**budget["speeds"])})
    assert f"fit.steps={known.steps}" in given[0][1]
    assert f"predictions.early={tmp_path}/out/run/checkpoints/step_{known.steps // 4 * 2:08d}" in given[1][1]
    assert f"fit.steps={known.head_steps}" in given[1][1]
