"""Compares tensors in safetensors files with what a model expects, before memory is allocated.

The header of a file gives name, shape and type of each tensor. A model built on the meta device gives the
same without weights. So a config whose sizes differ from those in the files is refused at no cost.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from worldmodel.checked import LARGEST, is_regular
from worldmodel.types import to_unit_range

M = TypeVar("M", bound=nn.Module)
FLOATS = ("F64", "F32", "F16", "BF16")  # weights are converted from any of these to the model's type
OTHERS = {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


@dataclass(frozen=True)
class TensorHeader:
    """Name of the file, shape and type of one tensor."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # in the notation of safetensors


def skeleton(make: Callable[[], M], where: str) -> M:
    """Build the model without weights; errors name its description `where`."""
    try:
        with torch.device("meta"):
            return make()
    except ValueError as error:
        raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from error
    except (
        *(RuntimeError, TypeError, KeyError, IndexError, AttributeError, AssertionError),
        *(ArithmeticError, NotImplementedError, MemoryError),
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{where}: describes no model that can be built ({reason})") from error


def read_headers(files: Iterable[Path]) -> dict[str, TensorHeader]:
    """Headers of all tensors; missing or damaged files and duplicate tensors are refused by name."""
    found: dict[str, TensorHeader] = {}
    for path in files:
        if not is_regular(path):
            raise ValueError(f"{path} is missing")
        if not os.access(path, os.R_OK):  # for an unreadable file, safetensors reports that it does not exist
            raise ValueError(f"{path}: no right to read it")
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    part = file.get_slice(name)
                    if name in found:
                        raise ValueError(f"{path}: {name} is in {found[name].file.name} as well")
                    found[name] = TensorHeader(path, tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    return found


def check_headers(files: Iterable[Path], expected: Mapping[str, Tensor], ignored: Iterable[str] = ()) -> None:
    """Refuse files whose tensors are not exactly the expected ones; `ignored` ones may be added."""
    names = list(files)
    found = read_headers(names)
    extra = {name for name in found.keys() - expected.keys() if not any(part in name for part in ignored)}
    differing = sorted((expected.keys() - found.keys()) | extra)
    if differing:
        raise ValueError(f"{names[0]} does not fit its config: {_sides(differing, found)}")
    for name, tensor in expected.items():
        header = found[name]
        if header.shape != tuple(tensor.shape):
            raise ValueError(
                f"{header.file}: {name} has shape {header.shape}, expected {tuple(tensor.shape)}"
            )
        kinds = FLOATS if tensor.is_floating_point() else (OTHERS.get(tensor.dtype, ""),)
        if header.dtype not in kinds:
            raise ValueError(f"{header.file}: {name} holds {header.dtype}, expected {' or '.join(kinds)}")


def _sides(differing: list[str], found: Mapping[str, TensorHeader]) -> str:
    """The first few tensors that only one side has, and how many more there are."""
    shown = [f"{name} {'is not expected' if name in found else 'is missing'}" for name in differing[:3]]
    more = len(differing) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def check_loaded(files: Iterable[Path], loaded: Mapping[str, Tensor]) -> None:
    """Refuse weights in memory that differ from the files or are missing from them.

    Some libraries load the weights in one process only and give zeros to the others.
    """
    headers = read_headers(files)
    known = {tensor.data_ptr() for name, tensor in loaded.items() if name in headers}
    for name, tensor in loaded.items():
        if name not in headers and tensor.data_ptr() not in known:  # a tied weight is stored once
            raise ValueError(f"{next(iter(headers.values())).file.parent}: {name} is in none of the files")
    for path in sorted({header.file for header in headers.values()}):
        with safe_open(path, framework="pt") as file:
            for name in headers.keys() & loaded.keys():
                if headers[name].file != path:
                    continue
                if not torch.equal(file.get_tensor(name).to(loaded[name].dtype), loaded[name].cpu()):
                    raise ValueError(
                        f"{path}: {name} is not in memory as it is in the file; where a launch file asks for "
                        "FSDP, set fsdp_cpu_ram_efficient_loading: false in it"
                    )


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights with NaN or infinity; errors name the tensor."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"{where}: {name} holds NaN or infinity")


ROUNDING = 0.01  # tolerance outside [0, 1] for floats that were resized or saved in half precision


def read_frames(
    frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"], check: Callable[..., None]
) -> Float[Tensor, "b t 3 H W"]:
    """Frames as floats in [0, 1]; wrong axes, types and ranges are refused, and wrong sizes by `check`."""
    if frames.ndim != 5 or frames.shape[2] != 3:
        raise ValueError(
            f"frames: expected [batch, time, 3, height, width], colors first, got {list(frames.shape)}"
        )
    check(size=(frames.shape[3], frames.shape[4]))
    if frames.dtype != torch.uint8 and not frames.is_floating_point():
        raise ValueError(f"frames: expected uint8 in 0 .. 255 or floats in 0 .. 1, got {frames.dtype}")
    # Floats of 0 .. 255 are refused here; resizing exceeds [0, 1] by rounding errors only.
    return check_numbers(to_unit_range(frames), "frames", -ROUNDING, 1 + ROUNDING).clamp(0, 1)


def check_numbers(values: Tensor, name: str, low: float = -LARGEST, high: float = LARGEST) -> Tensor:
    """Return the tensor; NaN, infinity and values outside the range are refused."""
    least, most = (float(bound) for bound in values.aminmax()) if values.numel() else (low, high)
    if not (low <= least and most <= high):
        raise ValueError(f"{name}: expected numbers in {low:g} .. {high:g}, got {least:g} .. {most:g}")
    return values
