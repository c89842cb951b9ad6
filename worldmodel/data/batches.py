"""Selects the clips of each batch: a pure function of (seed, epoch, batch index), so runs can resume.

    sampler = BatchSampler(len(dataset), batch_size=8, seed=0, rank=rank, world_size=world_size)
    for batch in load_batches(dataset, sampler.stream(epoch, batch_index), num_workers=2):
        ...                 # never ends; step s is epoch s // len(sampler), batch s % len(sampler)

Every process computes the same global order and uses its own part, so `accelerator.prepare` is not needed:

    global order   7 2 9 4 | 0 5 1 8 | 3 6      batch_size 2, world_size 2; the tail is dropped
    rank 0         7 2     | 0 5     |
    rank 1             9 4 |     1 8 |

Datasets smaller than one batch still train; clips are repeated to fill it.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import count, takewhile
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from worldmodel.data.dataset import collate_clips
from worldmodel.signals import obey_parent, starting_workers
from worldmodel.types import Clip, ClipBatch


class BatchSampler:
    """Indices of the clips in each batch of one process."""

    def __init__(
        self,
        num_items: int,
        batch_size: int,  # per process
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,  # False: the tail is kept, and ranks may get unequal batches
    ) -> None:
        if batch_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"got batch_size={batch_size}, rank={rank} of world_size={world_size}")
        if num_items < 1:
            raise ValueError("there are no clips to make batches of")
        self.num_items, self.batch_size = num_items, batch_size
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.shuffle, self.drop_last = shuffle, drop_last

    def __len__(self) -> int:
        """Batches of this process in one epoch."""
        whole, rest = divmod(self.num_items, self.batch_size * self.world_size)
        if self.drop_last and not whole:
            return 1
        return whole + (not self.drop_last and rest > self.rank * self.batch_size)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[list[int]]:
        """The batches of one epoch, starting at `start_batch`."""
        order = self._order(epoch)
        for index in range(start_batch, len(self)):
            first = (index * self.world_size + self.rank) * self.batch_size
            yield order[first : first + self.batch_size].tolist()

    def stream(self, epoch: int = 0, start_batch: int = 0) -> Iterator[list[int]]:
        """Batches of epoch after epoch, without end, so that workers are not restarted."""
        if not 0 <= start_batch <= len(self):
            raise ValueError(f"an epoch has {len(self)} batches, cannot start at batch {start_batch}")
        yield from self.epoch(epoch, start_batch)
        for later in count(epoch + 1):
            yield from self.epoch(later)

    def _order(self, epoch: int) -> torch.Tensor:
        # 2**31 - 1 is prime and larger than any epoch count: distinct (seed, epoch) pairs get distinct seeds.
        generator = torch.Generator().manual_seed(self.seed * (2**31 - 1) + epoch)
        times = -(-self.batch_size * self.world_size // self.num_items) if self.drop_last else 1
        orders = (
            torch.randperm(self.num_items, generator=generator)
            if self.shuffle
            else torch.arange(self.num_items)
            for _ in range(times)
        )
        return torch.cat(list(orders))


def load_batches(
    dataset: Dataset[Clip], batches: Iterable[list[int]], num_workers: int = 0, pin_memory: bool = False
) -> Iterator[ClipBatch]:
    """Collated batches of the given clips, in order, loaded by `num_workers` worker processes."""
    feed = _Feed(batches)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=cast(Any, feed),
        num_workers=num_workers,
        collate_fn=collate_clips,
        pin_memory=pin_memory,
        # A forked child inherits open HDF5 files and decoder threads; a spawned one opens its own.
        multiprocessing_context="spawn" if num_workers else None,
        # Without its own generator a DataLoader draws from the global one, which changes later random
        # numbers.
        generator=torch.Generator().manual_seed(0),
        worker_init_fn=obey_parent,
    )
    with starting_workers() if num_workers else nullcontext():
        loaded = iter(loader)
    try:
        yield from loaded
    finally:
        feed.is_open = False
        _drain(loaded)


class _Feed:
    """Batches that can be stopped, so that workers can finish an endless stream."""

    def __init__(self, batches: Iterable[list[int]]) -> None:
        self.batches, self.is_open = batches, True

    def __iter__(self) -> Iterator[list[int]]:
        return takewhile(lambda _: self.is_open, self.batches)


def _drain(loaded: Iterator[ClipBatch]) -> None:
    """Fetch all batches in progress: torch aborts a worker that exits with unfetched batches."""
    while True:
        try:
            next(loaded)
        except StopIteration:
            return
        except ValueError:  # an unreadable clip that is no longer needed
            continue
