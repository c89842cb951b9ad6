"""Rows of all processes and micro-batches in one contrast, without differentiating through communication.

Every process computes the loss of all rows. Only its own rows have gradients, so that the gradients of all
processes add up to the full gradient. Data-parallel training averages them: each process multiplies its own
by the number of processes. Accumulated micro-batches work alike: the rows of all are computed without
gradients first and kept, then each micro-batch replaces its own by those with gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor


def num_processes() -> int:
    """Number of processes that train together; 1 without a launcher."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class RowCache:
    """The rows of all micro-batches of one optimizer step."""

    def __init__(self) -> None:
        self._kept: list[list[list[Tensor]]] = []  # micro-batch -> call -> rows of every process
        self._place: tuple[int, int] | None = None  # micro-batch and call that come next; None: filling

    @contextmanager
    def fill(self) -> Iterator[None]:
        """Within, the contrast keeps the rows of one more micro-batch."""
        self._place = None
        self._kept.append([])
        with torch.no_grad(), self._active():
            yield

    @contextmanager
    def read(self, index: int) -> Iterator[None]:
        """Within, the contrast of this micro-batch has the rows of all."""
        self._place = index, 0
        with self._active():
            yield

    @property
    def num_kept(self) -> int:
        """Micro-batches that are contrasted together; 1 while they are collected."""
        return len(self._kept) if self._place is not None else 1

    def exchange(self, rows: Shaped[Tensor, "*s n d"]) -> Shaped[Tensor, "*s m d"]:
        """Keep the rows, or put them in their place among those kept."""
        if self._place is None:
            self._kept[-1].append(_of_processes(rows))
            return rows
        index, call = self._place
        self._place = index, call + 1
        parts = [list(micro_batch[call]) for micro_batch in self._kept]
        parts[index][_rank()] = rows
        return torch.cat([part for micro_batch in parts for part in micro_batch], -2)

    @contextmanager
    def _active(self) -> Iterator[None]:
        before = _cache.set(self)
        try:
            yield
        finally:
            _cache.reset(before)


_cache: ContextVar[RowCache | None] = ContextVar("row_cache", default=None)


def num_parts() -> int:
    """Parts of one contrast: processes times the micro-batches that are kept."""
    cache = _cache.get()
    return num_processes() * (cache.num_kept if cache is not None else 1)


def has_all_rows() -> bool:
    """Whether the contrast has the rows of a whole step."""
    cache = _cache.get()
    return cache is not None and cache._place is not None


def gather_rows(rows: Shaped[Tensor, "*s n d"]) -> Shaped[Tensor, "*s m d"]:
    """The rows of all processes, by rank, and of all kept micro-batches; all must be equally many."""
    cache = _cache.get()
    if cache is not None:
        return cache.exchange(rows)
    if num_processes() == 1:
        return rows
    parts = _of_processes(rows)
    parts[_rank()] = rows
    return torch.cat(parts, -2)


def _of_processes(rows: Tensor) -> list[Tensor]:
    rows = rows.detach()
    if num_processes() == 1:
        return [rows]
    sent = rows.contiguous()
    sent = sent.to(torch.uint8) if sent.dtype == torch.bool else sent
    received = [torch.empty_like(sent) for _ in range(num_processes())]
    dist.all_gather(received, sent)
    return [part.to(rows.dtype) for part in received]


def _rank() -> int:
    return dist.get_rank() if num_processes() > 1 else 0


def scale_gradient(loss: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Identity that multiplies the gradient by the number of parts, whose mean is then the full one."""
    constant = loss.detach()
    return constant + num_parts() * (loss - constant)
