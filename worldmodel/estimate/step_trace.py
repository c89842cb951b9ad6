"""Memory and work of a training step, found by running it on tensors without storage (fake tensors).

No weight is loaded and nothing is computed: every operation only says which tensors it would make and how
many floating-point operations it would take. The highest sum of tensors alive at once is what a step needs.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class StepTrace:
    """What one forward and backward pass of a micro-batch takes."""

    peak_bytes: int  # most bytes alive at once beside the weights
    modulation_bytes: int  # most bytes of AdaLN tensors (..., 6, d) alive at once, among the others
    flops: int  # floating-point operations of matrix products, convolutions and attention


class LiveTensors(TorchDispatchMode):
    """Follows every storage from the operation that makes it until the last tensor on it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = self.flops = 0
        self.modulation_bytes = self._live_modulation = 0
        self._known: dict[int, Any] = {}

    def ignore(self, tensor: Tensor) -> None:
        """Leave a storage, and all views of it, out of the count."""
        self._known.setdefault(tensor.untyped_storage()._cdata, tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*[_full_masks(value) for value in args], **kwargs)
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += int(count(*args, **kwargs, out_val=out))
        for leaf in tree_iter(out):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        return out

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        is_modulation = tensor.ndim >= 3 and tensor.shape[-2] == 6
        self.live_bytes += size
        self._live_modulation += size * is_modulation

        def forget(_: Any) -> None:
            del self._known[key]
            self.live_bytes -= size
            self._live_modulation -= size * is_modulation

        self._known[key] = weakref.ref(storage, forget)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.modulation_bytes = max(self.modulation_bytes, self._live_modulation)


def _full_masks(value: Any) -> Any:
    """Index lists with each mask replaced by positions, as if it were true everywhere: the largest result."""
    if not isinstance(value, list) or not any(isinstance(i, Tensor) and i.dtype == torch.bool for i in value):
        return value
    expanded: list[Tensor | None] = []
    for index in value:
        if isinstance(index, Tensor) and index.dtype == torch.bool:
            expanded += [index.new_empty(index.numel(), dtype=torch.int64) for _ in range(index.ndim)]
        else:
            expanded.append(index)
    return expanded


def trace_step(
    build: Callable[[], nn.Module], step: Callable[[Any], Tensor], *, autocast: bool, is_accumulating: bool
) -> StepTrace:
    """Run `step(build())`, which returns the loss, and its backward pass on fake tensors.

    With `is_accumulating` the gradients exist before the step and are not counted: they are always there when
    a step has several micro-batches, or when ddp keeps them in its buckets.
    """
    with torch.device("meta"):  # first without any storage, as layers look at values when they start
        model = build()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        live = LiveTensors()
        for tensor in (*model.parameters(), *model.buffers()):
            live.ignore(tensor)
            if is_accumulating and tensor.requires_grad:
                tensor.grad = torch.empty_like(tensor)
                live.ignore(tensor.grad)
        with live:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = step(model)
            loss.backward()
    return StepTrace(live.peak_bytes, live.modulation_bytes, live.flops)
