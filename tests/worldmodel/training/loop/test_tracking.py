import io
import json
import re
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

from worldmodel.training.loop.tracking import Tracker, check_trackers


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_resumed_log_has_each_step_once(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, (), 0, {})
    for step in (1, 2, 3):
        tracker.scalars(step, {"loss": 1.0 / 3})
    tracker.close()
    with (tmp_path / "log.jsonl").open("ab") as file:
        # Damage, and the line a killed run leaves.
        file.write(b'\xff\xfe\n[1]\n{"loss": 1}\n{"step": "x"}\n{"step": 4, "lo')
    tracker = Tracker(tmp_path, (), 2, {})
    tracker.scalars(3, {"loss": 0.5})
    tracker.close()
    assert [(r["step"], r["loss"]) for r in records(tmp_path)] == [(1, 1 / 3), (2, 1 / 3), (3, 0.5)]


def test_tensorboard_gets_curves_and_moving_pictures(tmp_path: Path) -> None:
    frames = np.zeros((5, 8, 12, 3), np.uint8)
    frames[2:] = 200
    tracker = Tracker(tmp_path, ("tensorboard",), 0, {})
    tracker.scalars(7, {"loss": 0.25}, kind="validation")
    tracker.video(7, "clip0", frames, fps=10)
    tracker.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("validation/loss")] == [(7, 0.25)]
    image = Image.open(io.BytesIO(board.Images("rollout/clip0")[0].encoded_image_string))
    assert (image.format, image.size) == ("GIF", (12, 8))
    assert image.is_animated


def test_wandb_is_used_when_asked_for_and_refused_when_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        check_trackers(("wandb",))
    calls: list[tuple[str, Any]] = []
    fake = types.SimpleNamespace(
        init=lambda **kwargs: calls.append(("init", kwargs["config"])),
        log=lambda values, step: calls.append(("log", (values, step))),
        finish=lambda: calls.append(("finish", None)),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    tracker = Tracker(tmp_path, ("wandb",), 0, {"steps": 3})
    tracker.scalars(1, {"loss": 0.5})
    tracker.close()
    assert calls == [("init", {"steps": 3}), ("log", ({"train/loss": 0.5}, 1)), ("finish", None)]


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(tmp_path, (), 0, {})
    tracker._file.close()
    tracker._file = open("/dev/full", "w")  # noqa: SIM115
    tracker.scalars(3, {"loss": 0.5})
    assert "step 3 was not logged: [Errno 28]" in caplog.text
    tracker.close()


def test_a_full_disk_under_tensorboard_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest has one of its own
    tracker = Tracker(tmp_path, ("tensorboard",), 0, {})
    assert tracker._board is not None
    monkeypatch.setattr(RecordWriter, "write", write)
    tracker.scalars(2, {"loss": 0.5})
    tracker._board._get_file_writer().event_writer._async_writer._worker.join(10)
    tracker.scalars(3, {"loss": 0.5})
    tracker.close()
    assert "step 3 was not logged: [Errno 28]" in caplog.text
    assert "Traceback" not in capsys.readouterr().err


def test_runs_of_one_name_in_two_folders_have_two_wandb_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[str] = []
    fake = types.SimpleNamespace(init=lambda **options: ids.append(options["id"]), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "a/seed0", tmp_path / "b/seed0", Path("a/seed0")):
        Tracker(folder, ("wandb",), 0, {}).close()
    first, second, again = ids
    assert first == again != second
    assert all(re.fullmatch("seed0-[0-9a-f]{8}", name) for name in ids)


class FullBoard:
    def _get_file_writer(self) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def test_a_video_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "worldmodel.training.loop.tracking.SummaryWriter", lambda *args, **options: FullBoard()
    )
    tracker = Tracker(tmp_path, ("tensorboard",), 0, {})
    tracker.video(7, "clip0", np.zeros((5, 8, 12, 3), np.uint8), fps=10)
    assert "video clip0 of step 7 was not logged: [Errno 28]" in caplog.text
    tracker.close()
