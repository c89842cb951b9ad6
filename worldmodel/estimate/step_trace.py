"""Memory and FLOPs of a training step, measured by running it on tensors without storage (fake tensors).

No weight is loaded and nothing is computed: every operation only reports the tensors it would create and its
floating-point operations. The peak memory is the largest total size of tensors alive at the same time.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

TRACED_BLOCKS = 5  # the first, the last and three equal ones between them
_MIDDLE, _NONE, _OUTSIDE = 2, -1, (-1, -1)
_LOOKS_LIKE = {1: 3, _MIDDLE: _NONE, 3: 1}
_ATEN = torch.ops.aten
# Attention on a CPU is an operation that torch does not count: same FLOPs as its counterpart on a GPU.
FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        _ATEN._scaled_dot_product_flash_attention
    ],
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _ATEN._scaled_dot_product_flash_attention_backward
    ],
}


@dataclass(frozen=True)
class StepTrace:
    """Cost of one forward and backward pass of a micro-batch."""

    peak_bytes: int  # most bytes alive at once, without the weights
    modulation_bytes: int  # most bytes of AdaLN tensors (..., 6, d) alive at once; included in the above
    flops: int  # floating-point operations of matrix products, convolutions and attention


@dataclass(frozen=True)
class Stack:
    """A run of identical blocks of which only some were traced; the cost of the others is extrapolated."""

    blocks: Sequence[nn.Module]  # TRACED_BLOCKS of them if some are left out
    num_omitted: int


class LiveTensors(TorchDispatchMode):
    """Tracks every storage from its creation until its last tensor is freed.

    Blocks left out of a stack count as if they were in its middle. The memory that a block keeps alive
    depends on whether the step is before, in or after it. When the step is in the second block, those left
    out count like the fourth; in the fourth, like the second; anywhere else, like the third. From the second
    block to the last but one the sum changes by equal amounts, so one of these two has the maximum.
    """

    def __init__(self, stacks: Sequence[Stack] = ()) -> None:
        super().__init__()
        self.stacks = stacks
        self.peak_bytes = self.modulation_bytes = 0
        self._place = _OUTSIDE  # current position of the step: stack, block
        self._flops, self._bytes, self._modulation = (Counter[tuple[int, int]]() for _ in range(3))
        self._known: dict[int, Any] = {}
        for number, stack in enumerate(stacks):
            for position, block in enumerate(stack.blocks):
                block.register_forward_pre_hook(partial(self._forward_enters, (number, position)))
                block.register_forward_hook(partial(self._forward_leaves, (number, position)))

    @property
    def flops(self) -> int:
        """Floating-point operations counted so far."""
        omitted = (stack.num_omitted * self._flops[n, _MIDDLE] for n, stack in enumerate(self.stacks))
        return self._flops.total() + sum(omitted)

    def ignore(self, tensor: Tensor) -> None:
        """Exclude a storage, and all views of it, from the count."""
        self._known.setdefault(tensor.untyped_storage()._cdata, tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # two of three calls, and slow with fake tensors
            return args[0].fake_device
        kwargs = kwargs or {}
        out = func(*[_full_masks(value) for value in args], **kwargs)
        if (count := FLOPS.get(func._overloadpacket)) is not None:
            self._flops[self._place] += int(count(*args, **kwargs, out_val=out))
        for leaf in tree_iter(out):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        return out

    def _follow(self, tensor: Any) -> None:
        if tensor.fake_device.type == "meta":  # some forward-mode derivatives lose the device
            tensor.fake_device = torch.device("cpu")
        storage = tensor.untyped_storage()
        key, size, place = storage._cdata, storage.nbytes(), self._place
        if key in self._known:
            return
        modulation = size * (tensor.ndim >= 3 and tensor.shape[-2] == 6)
        self._bytes[place] += size
        self._modulation[place] += modulation

        def forget(_: Any) -> None:
            del self._known[key]
            self._bytes[place] -= size
            self._modulation[place] -= modulation

        self._known[key] = weakref.ref(storage, forget)
        self.peak_bytes = max(self.peak_bytes, self._alive(self._bytes))
        self.modulation_bytes = max(self.modulation_bytes, self._alive(self._modulation))

    def _alive(self, by_place: Counter[tuple[int, int]]) -> int:
        total, (here, position) = by_place.total(), self._place
        for number, stack in enumerate(self.stacks):
            like = _LOOKS_LIKE.get(position, _MIDDLE) if number == here else _MIDDLE
            total += stack.num_omitted * by_place[number, like]
        return total

    def _enter(self, place: tuple[int, int], *_: Any) -> None:
        self._place = place

    def _forward_enters(self, place: tuple[int, int], block: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._enter(place)
        if given[0].requires_grad:
            given[0].register_hook(partial(self._backward_leaves, place))

    def _forward_leaves(self, place: tuple[int, int], block: nn.Module, given: Any, output: Tensor) -> None:
        self._enter(_OUTSIDE)
        if output.requires_grad:  # the backward pass of a block starts from the gradient of its output
            output.register_hook(partial(self._enter, place))

    def _backward_leaves(self, place: tuple[int, int], gradient: Tensor) -> None:
        if gradient.requires_grad:  # a backward pass through this one goes through the blocks again
            gradient.register_hook(partial(self._enter, place))


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
    build: Callable[[], nn.Module],
    step: Callable[[Any], Tensor],
    *,
    autocast: bool,
    is_accumulating: bool,
    stacks: Callable[[Any], Sequence[Stack]] = lambda model: (),
) -> StepTrace:
    """Run `step(build())`, which returns the loss, and its backward pass on fake tensors.

    Args:
        build: makes the model.
        step: from the model to the loss.
        autocast: compute in bfloat16.
        is_accumulating: the gradients exist before the step and are not counted. They always exist if a step
            has several micro-batches, or if ddp keeps them in its buckets.
        stacks: where blocks were left out of the model that is to be counted.
    """
    with torch.device("meta"):  # first without storage, because layers check values when they are created
        model = build()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        live = LiveTensors(stacks(model))
        for tensor in (*model.parameters(), *model.buffers()):
            live.ignore(tensor)
            if is_accumulating and tensor.requires_grad:
                tensor.grad = torch.empty_like(tensor)
                live.ignore(tensor.grad)
        with live:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = step(model)
            if loss.requires_grad:  # not without gradients, as in a rollout
                loss.backward()
    return StepTrace(live.peak_bytes, live.modulation_bytes, live.flops)
