import os
import signal
from collections.abc import Iterator

import pytest

from worldmodel import signals
from worldmodel.cli_errors import STOPPED, Stopped, one_way_out
from worldmodel.signals import STOP_SIGNALS, end_on_signals, starting_workers, stop_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_asks_and_a_launchers_second_one_changes_nothing(number: signal.Signals) -> None:
    with stop_on_signals() as stop:
        assert not stop.is_received
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_received
        with pytest.raises(Stopped, match=f"stopped by {number.name}: 3 clips are in out, the same command"):
            stop.check("3 clips are in out, the same command goes on")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # a second Ctrl-C kills


def test_without_a_signal_nothing_happens() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with end_on_signals("nothing"), stop_on_signals() as stop:
        stop.check("nothing")
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_where_nothing_has_to_be_finished_a_signal_ends_the_command(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    @one_way_out
    def command() -> int:
        with end_on_signals("the same command goes on"):
            signal.raise_signal(number)
        return 0

    assert command() == STOPPED == 143
    assert capsys.readouterr().err == f"stopped by {number.name}: the same command goes on\n"


def test_the_death_of_a_launcher_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with stop_on_signals() as stop:
        monkeypatch.setattr(signals, "LAUNCHER", os.getppid())
        assert not stop.is_received
        monkeypatch.setattr(signals, "LAUNCHER", 1 << 22)
        with pytest.raises(Stopped, match="stopped by the end of its launcher: saved"):
            stop.check("saved")


def test_workers_are_deaf_from_birth_and_their_parent_is_not() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with starting_workers():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) >= {*STOP_SIGNALS}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
