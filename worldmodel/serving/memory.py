"""Give memory back that the allocator keeps: hours of small and large pieces in turn leave holes in it."""

import ctypes
import sys


def return_free_memory() -> None:
    """Where the C library can (glibc); elsewhere nothing happens."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
