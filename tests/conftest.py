import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

# Before anything is imported: tests neither use nor leave anything in the user's cache folder.
os.environ["WORLDMODEL_CACHE"] = tempfile.mkdtemp(prefix="worldmodel_cache_")


@pytest.fixture
def python_hears_ctrl_c() -> Iterator[None]:
    """Also where the tests run in the background, whose processes the shell makes deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
