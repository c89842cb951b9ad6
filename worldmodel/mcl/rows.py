"""The rows that are contrasted, with their keys, scale and precision, and what comes out.

The rows of all processes and micro-batches can share one contrast, without differentiating through
communication. Every process computes the loss of all rows. Only its own rows have gradients, so that the
gradients of all processes add up to the full gradient. Data-parallel training averages them: each process
multiplies its own by the number of processes. Accumulated micro-batches work alike: the rows of all are
computed without gradients first and kept, then each micro-batch replaces its own by those with gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The keys of a batch's mechanism features, row by row."""

    keys: Float[Tensor, "*s n a"]
    valid: Bool[Tensor, "*s n"]  # rows that take part
    also: dict[str, Float[Tensor, "*s n b"]]  # further keys, for the auxiliary heads


def is_half_precision(z: Tensor) -> bool:
    """Whether the generator computes in half precision, judging by its input and autocast."""
    return z.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(z.device.type)


def full_precision(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in more if it has more."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def clip_rows(
    rows: Float[Tensor, "*s n d"], max_norm: float
) -> tuple[Float[Tensor, "*s n d"], Float[Tensor, "*s n"]]:
    """Rows shortened to at most `max_norm` (0 = unchanged), and their norms before."""
    # The clamp keeps the gradient finite at 0, the feature of a generator that ignores z.
    norm = rows.square().sum(-1).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    if max_norm:
        rows = rows * (max_norm / norm).clamp(max=1).unsqueeze(-1)
    return rows, norm


def unit_rows(rows: Float[Tensor, "*s n d"]) -> tuple[Float[Tensor, "*s n d"], Float[Tensor, "*s n"]]:
    """Rows scaled to unit root mean square, and their norms before; rows of zeros stay zero."""
    norm = rows.square().sum(-1).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    return rows * (rows.shape[-1] ** 0.5 / norm).unsqueeze(-1), norm


@dataclass(frozen=True)
class MclOutput:
    """One value per independent batch: scalars, unless several seeds train side by side."""

    loss: Float[Tensor, "*s"]
    accuracy: Float[Tensor, "*s"]  # share of rows that find their own condition; nan for score matching
    floor: Float[Tensor, "*s"]  # what the loss tends to at best, given repeated conditions
    chance: Float[Tensor, "*s"]  # the accuracy of guessing; nan for score matching
    chance_high: Float[Tensor, "*s"]  # what guessing stays below; nan for score matching
    # The direct path is that of z into the critic. The next two are nan for nce and score matching.
    accuracy_direct: Float[Tensor, "*s"]  # with x_hat detached; chance where there is no direct path
    # With the critic given z detached and the mean u: by the generator's use of u alone. It costs a backward
    # pass through the generator; for gradients it is nan while training.
    accuracy_generator: Float[Tensor, "*s"]
    generator_share: Float[Tensor, "*s"]  # of the feature's norm, mean over rows; the rest is the direct path
    gradient_norm: Float[Tensor, "*s"]  # mean norm of a row's mechanism feature before clipping; nan for nce
    clipped: Float[Tensor, "*s"]  # share of rows that were clipped


@dataclass(frozen=True)
class Paths:
    """How well the parts of a feature tell the condition."""

    accuracy_direct: Float[Tensor, "*s"]
    accuracy_generator: Float[Tensor, "*s"]  # nan: not measured
    share: Float[Tensor, "*s"]


def few_rows(wanted: int, count: int) -> str:
    """Why a contrast of `count` rows is refused."""
    return (
        f"mcl.rows={wanted} rows are to be contrasted, an optimizer step has {count}: raise fit.global_batch "
        "or mcl.share, or lower mcl.rows"
    )


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
    """How many batches of rows one InfoNCE loss joins: processes times the micro-batches kept in memory."""
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
