import errno
import os
import shlex
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch
from safetensors import SafetensorError

from worldmodel.cli_errors import CommandError, one_way_out


class StoppedError(CommandError):
    exit_code = 143


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("fps is 0"), 2, "fps is 0"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.yaml"), 2, "a.yaml"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 1, "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system", "x"), 1, "name another folder"),
        (FileExistsError(errno.EEXIST, "File exists", "out"), 2, "out' (a file or link of this name is in"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "no right to do this"),
        (SafetensorError("header too large"), 1, "header too large"),
        (MemoryError(), 1, "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "out of memory"),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), 1, "use fewer workers"),
        (BrokenProcessPool("a process was terminated abruptly"), 1, "use fewer workers"),
        (StoppedError("saved"), 143, "saved"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("task \x1b[2J\x9b31m gone"), 2, "task ?[2J?31m gone"),
    ],
)
def test_errors_become_one_line_and_a_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture
) -> None:
    @one_way_out
    def main() -> int:
        raise error

    assert main() == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_faults_of_the_program_still_show_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    @one_way_out
    def main(kind: type[Exception]) -> int:
        raise kind("x")

    for kind in (KeyError, TypeError, AssertionError, RuntimeError):
        with pytest.raises(kind):
            main(kind)
    monkeypatch.setenv("WORLDMODEL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="x"):
        main(ValueError)


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from worldmodel.cli import main; sys.exit(main())", *words]


BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
PRINTING = [  # a short output fails at the end, or at its first line
    (("presets",), BUFFERED),
    (("--help",), BUFFERED | {"PYTHONUNBUFFERED": "1"}),
    (("inspect", "--help"), BUFFERED),
]


@pytest.mark.parametrize(("words", "environment"), PRINTING)
def test_a_closed_pipe_is_no_error(words: tuple[str, ...], environment: dict[str, str]) -> None:
    run = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert run.stdout is not None
    run.stdout.close()
    _, said = run.communicate(timeout=120)
    assert (run.returncode, said) == (141, b"")


@pytest.mark.parametrize(("words", "environment"), PRINTING)
def test_an_output_on_a_full_disk_is_said_in_one_line(
    words: tuple[str, ...], environment: dict[str, str]
) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(command(*words), stdout=full, stderr=subprocess.PIPE, env=environment)
    assert run.returncode == 1
    assert run.stderr.count(b"\n") == 1
    assert b"the disk is full" in run.stderr


def test_without_an_output_a_command_still_runs() -> None:
    line = shlex.join(command("presets"))
    run = subprocess.run(["sh", "-c", f"{line} >&-"], stderr=subprocess.PIPE)
    assert (run.returncode, run.stderr) == (0, b"")
