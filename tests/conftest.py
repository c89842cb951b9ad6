import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest

# Before anything is imported: tests neither use nor leave anything in the user's cache folder.
os.environ["WORLDMODEL_CACHE"] = tempfile.mkdtemp(prefix="worldmodel_cache_")


def pytest_configure(config: pytest.Config) -> None:
    """Tests compute on the CPU, also where there is a GPU, but for those that need one (pytest -m gpu)."""
    if "not gpu" in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture
def python_hears_ctrl_c() -> Iterator[None]:
    """Also where the tests run in the background, whose processes the shell makes deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_accelerator_of_another_test() -> Iterator[None]:
    """Its precision is fixed for a process: a test in bf16 would break the next one in float32."""
    yield
    if "accelerate" in sys.modules:
        sys.modules["accelerate"].state.AcceleratorState._reset_state(reset_partial_state=True)
