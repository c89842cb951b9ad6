"""Long work in separate processes: one log each, a record of the command, a clean stop on signals."""

import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from worldmodel.cli_errors import STOPPED, CommandError
from worldmodel.files import write_text

COMMAND_FILE = "command.json"
EXIT_NOT_STARTED = 127  # exit code that shells use for it
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class StoppedError(CommandError):
    """A training was stopped by a signal, after saving."""

    exit_code = STOPPED


def is_same_command(folder: Path, arguments: Sequence[str]) -> bool:
    """Whether the folder belongs to this command (False: to none yet); one of another command is refused."""
    record = folder / COMMAND_FILE
    if not record.exists():
        return False
    before = json.loads(record.read_text())
    if before != list(arguments):
        changed = sorted(set(before) ^ set(arguments)) or ["their order"]
        raise ValueError(
            f"{folder} belongs to another run: {' '.join(changed)} differ; use another output, "
            "or move the folder away"
        )
    return True


def record_command(folder: Path, arguments: Sequence[str]) -> None:
    """Write the command into the folder before the work begins."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / COMMAND_FILE, json.dumps(list(arguments), indent=1) + "\n")


def run_logged(command: Sequence[str], log: Path) -> int:
    """Run a command and append its output to the log; returns the exit code.

    KeyboardInterrupt ends the child with SIGTERM, on which trainings save themselves, and is then raised
    again. The child has its own process group: Ctrl-C in a terminal would reach it too, and a training
    interprets the second signal as 'now, without saving'. A second Ctrl-C here does just that. On Linux the
    child also gets SIGTERM if this process is killed: otherwise it would run on and block the next start.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    end = functools.partial(_end_with, os.getpid()) if _LIBC is not None else None
    with log.open("a") as file:
        try:
            process = subprocess.Popen(command, stdout=file, stderr=file, process_group=0, preexec_fn=end)
        except OSError as error:
            file.write(f"{error}\n")
            return EXIT_NOT_STARTED
        try:
            return process.wait()
        except KeyboardInterrupt:
            _end(process)
            raise


def _end_with(parent: int) -> None:
    """In the child, before its program starts: request SIGTERM for when the parent dies."""
    assert _LIBC is not None
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent died before the request
        os.kill(os.getpid(), signal.SIGTERM)


def interrupt_on_signals() -> None:
    """Treat SIGTERM and a closed terminal like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup keeps the process running
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        process.wait()
