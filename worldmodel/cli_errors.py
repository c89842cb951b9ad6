"""Error handling of all commands and scripts: an exit code and one line on stderr for every error.

0 done 1 the machine failed: full disk, no write permission, out of memory, a loss that is not finite 2 wrong
input: config, data or model 130 interrupted; 141 output pipe closed; 143 stopped by a signal (the same
command resumes)

Bugs of the program still end in a traceback. WORLDMODEL_TRACEBACK=1 shows one for every error.
"""

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from worldmodel.plain_text import printable

P = ParamSpec("P")
FAILED, WRONG_INPUT, INTERRUPTED, BROKEN_PIPE, STOPPED = 1, 2, 130, 141, 143
NO_SUCH_INPUT = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError)
HINTS = {
    errno.ENOSPC: "the disk is full: free some space and give the same command again",
    errno.EDQUOT: "the quota is used up: free some space and give the same command again",
    errno.EROFS: "the file system is read-only: name another folder",
    errno.EACCES: "no right to do this: name another folder or change its rights",
    errno.EPERM: "no right to do this: name another folder or change its rights",
    errno.EEXIST: "a file or link of this name is in the way: name another folder",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
}
DEAD_WORKER = (
    "a worker died, most often for lack of memory: use fewer workers, then go on with the same command"
)


class CommandError(RuntimeError):
    """Ends a command with this message and an exit code."""

    exit_code = FAILED


class Stopped(KeyboardInterrupt):
    """Ends a command that a signal stopped; the message states what was saved and how to resume."""


def one_way_out(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorator for the `main` of a command: errors other than bugs become exit codes."""

    @functools.wraps(main)
    def guarded(*arguments: P.args, **options: P.kwargs) -> int:
        try:
            with _written_out():
                return int(main(*arguments, **options) or 0)
        except Exception as error:
            code = exit_code(error)
            if code is None or os.environ.get("WORLDMODEL_TRACEBACK"):
                raise
            return _say(error, code)
        except Stopped as stop:
            sys.stderr.write(printable(str(stop)) + "\n")
            return STOPPED
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            return INTERRUPTED

    return guarded


def exit_code(error: BaseException) -> int | None:
    """The exit code of an error; None for bugs, which keep their traceback."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    if isinstance(error, (ValueError, *NO_SUCH_INPUT)):
        return WRONG_INPUT
    # Compared by name: importing torch and safetensors here would take seconds.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OSError | MemoryError) or kinds & {"OutOfMemoryError", "SafetensorError"}:
        return FAILED
    return FAILED if is_dead_worker(error) else None


def is_dead_worker(error: BaseException) -> bool:
    """Whether a worker process died, usually because the system ran out of memory."""
    is_loader = isinstance(error, RuntimeError) and "DataLoader worker" in str(error)
    return is_loader or type(error).__name__ == "BrokenProcessPool"


@contextmanager
def _written_out() -> Iterator[None]:
    """Flush stdout before the block ends, so that a full disk or a closed pipe is noticed here."""
    try:
        yield
    except SystemExit:  # argparse has printed its help
        _flush()
        raise
    _flush()


def _flush() -> None:
    if sys.stdout is not None:  # None if the command was started without stdout
        sys.stdout.flush()


def _say(error: Exception, code: int) -> int:
    try:
        _flush()
    except OSError:  # Python would report the error again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if code == BROKEN_PIPE:
        return code
    hint = HINTS.get(getattr(error, "errno", None) or 0, DEAD_WORKER if is_dead_worker(error) else "")
    message = str(error) or type(error).__name__
    prefix = sys.argv[0] if sys.argv[0].startswith("worldmodel ") else "error"
    sys.stderr.write(printable(f"{prefix}: {message}" + (f" ({hint})" if hint else "")) + "\n")
    return code
