"""Stopping a command: on a signal it finishes the current step, saves, and prints how to resume.

SIGTERM, SIGINT (Ctrl-C) and SIGUSR1, which SLURM can send some minutes before the time limit. A launcher and
its machine may both send the same signal, so only a second Ctrl-C kills.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

from worldmodel.cli_errors import Stopped

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LAUNCHED = {"ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"}  # environment variables set by launchers
LAUNCHER = os.getppid() if LAUNCHED & os.environ.keys() else None  # parent at the start of this process


class StopRequest:
    """Whether a stop was requested, and by what."""

    def __init__(self) -> None:
        self.cause = ""

    @property
    def is_received(self) -> bool:
        """True after a signal, or after the launcher died, which sends its processes no signal."""
        if LAUNCHER is not None and os.getppid() != LAUNCHER:
            self.cause = self.cause or "the end of its launcher"
        return bool(self.cause)

    def check(self, saved: str) -> None:
        """Exit if a stop was requested; `saved` describes what was saved and how to resume."""
        if self.is_received:
            raise Stopped(f"stopped by {self.cause}: {saved}")


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Inside this block stop signals set the request; afterwards the previous handlers are restored."""
    request = StopRequest()

    def receive(number: int, frame: FrameType | None) -> None:
        request.cause = request.cause or signal.Signals(number).name
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with _handled_by(receive):
        yield request


@contextmanager
def end_on_signals(saved: str) -> Iterator[None]:
    """Inside this block, where nothing has to be saved, a stop signal exits with a message."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Stopped(f"stopped by {signal.Signals(number).name}: {saved}")

    with _handled_by(end):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def ignore_signals() -> None:
    """For the end of a process: a launcher kills all of its processes once the first has exited."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def starting_workers() -> Iterator[None]:
    """Processes started inside this block ignore stop signals from the beginning; others do not."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # it unblocks two of the signals once it has started
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def obey_parent(*_: object) -> None:
    """In such a process: exit on SIGTERM from its parent, but ignore one sent to the whole group."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
