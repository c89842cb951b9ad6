"""Returns free memory to the system: after hours of mixed allocations the C allocator holds many gaps."""

import ctypes
import sys


def return_free_memory() -> None:
    """Trim the heap if the C library supports it (glibc); otherwise do nothing."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
