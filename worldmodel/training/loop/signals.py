"""Ending a run from outside: the first signal asks it to save and stop, a second one kills it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# SIGUSR1 is what SLURM can be told to send some minutes before the time limit (`--signal=USR1@300`).
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
EXIT_STOPPED = 143  # 128 + SIGTERM: saved but not finished, so that `train && evaluate` does not go on


class StopRequest:
    """Whether a stop was asked for."""

    def __init__(self) -> None:
        self.is_received = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Inside this block the stop signals set the request; afterwards they do again what they did before."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        request.is_received = True
        restore()

    for number in STOP_SIGNALS:
        signal.signal(number, receive)
    try:
        yield request
    finally:
        restore()
