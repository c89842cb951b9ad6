import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from studies.child_process import is_same_command, record_command, run_logged

SAVES_ITSELF = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""


def test_what_is_printed_and_the_exit_code_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs/a.log"
    assert run_logged([sys.executable, "-c", "print('one'); raise SystemExit(3)"], log) == 3
    assert run_logged(["no_such_program"], log) == 127
    assert log.read_text().startswith("one\n")
    assert "no_such_program" in log.read_text()


@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_an_interrupted_parent_lets_the_child_save_itself(tmp_path: Path) -> None:
    log = tmp_path / "a.log"

    def interrupt() -> None:
        while not log.exists() or "ready" not in log.read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_logged([sys.executable, "-c", SAVES_ITSELF], log)
    assert time.monotonic() - started < 30
    assert log.read_text() == "ready\nsaved\n"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_killed_parent_lets_the_child_save_itself(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    parent = os.fork()
    if not parent:
        run_logged([sys.executable, "-c", SAVES_ITSELF], log)
        os._exit(0)
    while not log.exists() or "ready" not in log.read_text():
        time.sleep(0.02)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    deadline = time.monotonic() + 30
    while "saved" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert log.read_text() == "ready\nsaved\n"


def test_a_folder_belongs_to_one_command(tmp_path: Path) -> None:
    assert not is_same_command(tmp_path / "a", ["x=1"])
    record_command(tmp_path / "a", ["x=1", "y=2"])
    assert is_same_command(tmp_path / "a", ["x=1", "y=2"])
    with pytest.raises(ValueError, match="another run: x=1 x=3 differ"):
        is_same_command(tmp_path / "a", ["x=3", "y=2"])
