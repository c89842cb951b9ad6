"""Where a model computes and in which precision: two settings of every command that loads a model."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

F = TypeVar("F", bound=Callable[..., Any])

Device = Literal["auto", "cpu", "cuda", "mps"]  # auto: cuda if there is one, else mps, else cpu
AnyDevice = str | torch.device  # what functions take: a setting, or a device of torch
Precision = Literal["auto", "no", "bf16"]  # auto: bf16 on cuda, else no


def find_device(name: AnyDevice = "auto") -> torch.device:
    """The device of a setting; where there are several GPUs, the one of this process."""
    if isinstance(name, torch.device):
        return name
    is_there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, found in is_there.items() if found)
    if name not in is_there:
        raise ValueError(f"device is auto, cpu, cuda or mps, got {name!r}")
    if not is_there[name]:
        raise ValueError(f"device={name}, but torch {torch.__version__} finds none: set device=cpu or auto")
    if name == "cuda":
        return torch.device(name, int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device(name)


def find_precision(precision: Precision, device: torch.device) -> Literal["no", "bf16"]:
    """The precision of a setting on this device."""
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "no"
    return precision


@contextmanager
def inference(model: nn.Module, device: torch.device, precision: Precision = "auto") -> Iterator[None]:
    """Evaluation mode inside this block, and matrix products in the precision of the setting."""
    was_training = model.training
    if was_training:  # walking through the modules of a small model costs a step
        model.eval()
    is_half = find_precision(precision, device) == "bf16"
    try:
        with torch.autocast(device.type, torch.bfloat16) if is_half else nullcontext():
            yield
    finally:
        if was_training:
            model.train()


def in_float32(forward: F) -> F:
    """A method that leaves autocast: in bfloat16, places in a picture are off by a tenth of a pixel."""

    @wraps(forward)
    def call(module: nn.Module, first: Tensor, *rest: Any, **named: Any) -> Any:
        kind = first.device.type
        if kind == "meta" or not torch.is_autocast_enabled(kind):
            return forward(module, first, *rest, **named)
        with torch.autocast(kind, enabled=False):
            return forward(module, first.float(), *rest, **named)

    return call  # type: ignore[return-value]
