"""Long work in separate processes: one log each, a record of the command, a clean stop on signals."""

import ctypes
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from worldmodel.files import write_text

COMMAND_FILE = "command.json"
EXIT_NOT_STARTED = 127  # exit code that shells use for it
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


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


def run_forked(module: str, arguments: Sequence[str], log: Path) -> int:
    """As `run_logged`, for a Python module in a fork of this process, which shares its imports.

    For many trainings of a minute, whose imports would add up to a quarter of the time. This process must not
    have used torch before: its threads do not survive the fork.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    parent = os.getpid()
    child = os.fork()
    if not child:
        os._exit(_run_here(module, arguments, log, parent))
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise


def _run_here(module: str, arguments: Sequence[str], log: Path, parent: int) -> int:
    """Run the module in the child; returns its exit code."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with log.open("a", buffering=1) as file:
        sys.stdout = sys.stderr = file
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            if _LIBC is not None:
                _end_with(parent)
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__")
        except SystemExit as ending:
            return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


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
