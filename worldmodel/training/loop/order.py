"""Assigns examples and noise to steps: pure functions of the seed, so there is no state to save.

A step has `num_slots` micro-batches. Slot i * world + rank is the i-th micro-batch of process `rank`, so 4
processes with 1 micro-batch each train on the same examples and noise as 1 process with 4:

    step         0                 1
    slot         0   1   2   3     0   1   2   3
    1 process    0   0   0   0     0   0   0   0     which rank does it
    4 processes  0   1   2   3     0   1   2   3
"""

import logging
import random
from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch

from worldmodel.data.batches import BatchSampler

log = logging.getLogger(__name__)


def micro_batches(
    num_items: int, micro_batch: int, num_slots: int, slots: range, seed: int, first_step: int
) -> Iterator[list[int]]:
    """The examples of this process's slots, for all steps from `first_step` on, without end."""
    samplers = [BatchSampler(num_items, micro_batch, seed, slot, num_slots) for slot in slots]
    if 0 in slots and num_items < micro_batch * num_slots:
        log.warning(
            "%d clips for a batch of %d: each comes more than once in it, with noise of its own. Lower "
            "fit.global_batch and fit.micro_batch for faster steps, or data.clip.step for more clips",
            num_items,
            micro_batch * num_slots,
        )
    streams = [sampler.stream(*divmod(first_step, len(sampler))) for sampler in samplers]
    return chain.from_iterable(zip(*streams, strict=True))


def process_slots(num_slots: int, rank: int, world: int) -> range:
    """The slots of one process, in order."""
    if num_slots % world:
        raise ValueError(
            f"a step has {num_slots} micro-batches (global_batch / micro_batch), "
            f"which {world} processes cannot share"
        )
    return range(rank, num_slots, world)


def seed_micro_batch(seed: int, step: int, slot: int) -> torch.Generator:
    """Seed the global generators from (seed, step, slot) and return a private one for noise and sigma.

    It draws on the CPU, so that every device gets the same numbers.
    """
    shared, private = (
        int(word) for word in np.random.SeedSequence([seed, step, slot]).generate_state(2, np.uint64)
    )
    torch.manual_seed(shared)
    np.random.seed(shared % 2**32)
    random.seed(shared)
    return torch.Generator().manual_seed(private)
