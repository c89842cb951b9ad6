import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def python_hears_ctrl_c() -> Iterator[None]:
    """Also where the tests run in the background, whose processes the shell makes deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
