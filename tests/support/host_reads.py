"""Counts what makes a GPU wait: reads of its values by Python, and operators whose size depends on values."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

BY_PYTHON = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy"}
BY_OPERATORS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2"}


class _Python(TorchFunctionMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if (name := getattr(func, "__name__", "")) in BY_PYTHON:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        places = args[1] if name.startswith("index") and isinstance(args[1], list | tuple) else ()
        by_mask = any(isinstance(place, Tensor) and place.dtype == torch.bool for place in places)
        if name in BY_OPERATORS or by_mask:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads() -> Iterator[Counter[str]]:
    """Name -> how often it was called inside the block; `item` is counted as its operator too."""
    found: Counter[str] = Counter()
    with _Python(found), _Operators(found):
        yield found
