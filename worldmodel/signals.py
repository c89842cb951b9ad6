"""Ending a command from outside: a stop signal lets it finish what is under way, save, and say how to go on.

SIGTERM, SIGINT (Ctrl-C) and SIGUSR1, which SLURM can be told to send some minutes before the time limit. A
launcher and its machine may both send the same one, so only a second Ctrl-C kills.
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
LAUNCHED = {"ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"}  # set by launchers
LAUNCHER = os.getppid() if LAUNCHED & os.environ.keys() else None  # as it was when this process began


class StopRequest:
    """Whether a stop was asked for, and by what."""

    def __init__(self) -> None:
        self.cause = ""

    @property
    def is_received(self) -> bool:
        """By a signal, or by the death of the launcher, which nobody tells its processes."""
        if LAUNCHER is not None and os.getppid() != LAUNCHER:
            self.cause = self.cause or "the end of its launcher"
        return bool(self.cause)

    def check(self, saved: str) -> None:
        """End the command here if so; `saved` says what it leaves and how to go on."""
        if self.is_received:
            raise Stopped(f"stopped by {self.cause}: {saved}")


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Inside this block the stop signals set the request; afterwards they do again what they did before."""
    request = StopRequest()

    def receive(number: int, frame: FrameType | None) -> None:
        request.cause = request.cause or signal.Signals(number).name
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with _handled_by(receive):
        yield request


@contextmanager
def end_on_signals(saved: str) -> Iterator[None]:
    """Inside this block, where nothing has to be finished, a stop signal ends the command with a sentence."""

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
    """For the last moments of a process: a launcher ends all of its processes once the first has ended."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def starting_workers() -> Iterator[None]:
    """Processes that start inside this block are deaf to stop signals from birth, as nobody else is."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # it unblocks two of them once it has started
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def obey_parent(*_: object) -> None:
    """In such a process: SIGTERM of its parent ends it, but not one that a group or machine is sent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
