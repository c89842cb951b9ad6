import multiprocessing
import signal
import subprocess
from collections.abc import Iterable
from itertools import chain, islice

import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from worldmodel.data.batches import BatchSampler, load_batches
from worldmodel.data.dataset import ClipDataset, collate_clips


def take(sampler: BatchSampler, count: int, epoch: int = 0, batch: int = 0) -> list[list[int]]:
    return list(islice(sampler.stream(epoch, batch), count))


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


@pytest.mark.parametrize("position", [0, 1, 5, 6, 7, 13, 20])
def test_resuming_anywhere_gives_the_remaining_batches(position: int) -> None:
    whole = take(BatchSampler(20, 3, seed=5), 30)
    fresh = BatchSampler(20, 3, seed=5)  # another process, nothing saved but the position
    assert take(fresh, 30 - position, *divmod(position, len(fresh))) == whole[position:]


def test_each_epoch_is_a_new_permutation() -> None:
    sampler = BatchSampler(12, 4)
    epochs = [flat(sampler.epoch(epoch)) for epoch in range(50)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 50
    assert flat(BatchSampler(12, 4, seed=1).epoch(0)) not in epochs


def test_order_is_fixed_for_all_time() -> None:
    # A new torch or a rewritten sampler must not silently change what a resumed run sees.
    assert flat(BatchSampler(8, 8, seed=0).epoch(0)) == [4, 0, 7, 3, 2, 5, 1, 6]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_processes_divide_the_same_global_batches(world_size: int) -> None:
    single = list(BatchSampler(26, 8, seed=2).epoch(3))
    parts = [
        list(BatchSampler(26, 8 // world_size, seed=2, rank=rank, world_size=world_size).epoch(3))
        for rank in range(world_size)
    ]
    assert [flat(batches) for batches in zip(*parts, strict=True)] == single
    assert len(single) == 3


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_sees_everything_once_in_order(world_size: int) -> None:
    samplers = [
        BatchSampler(11, 2, rank=rank, world_size=world_size, shuffle=False, drop_last=False)
        for rank in range(world_size)
    ]
    batches = [list(sampler.epoch(0)) for sampler in samplers]
    assert sorted(i for rank in batches for batch in rank for i in batch) == list(range(11))
    assert [len(rank) for rank in batches] == [len(sampler) for sampler in samplers]
    assert all(batch for rank in batches for batch in rank)


@pytest.mark.parametrize(("count", "world_size"), [(1, 1), (3, 1), (3, 2), (7, 2)])
def test_few_clips_are_repeated_until_a_batch_is_full(count: int, world_size: int) -> None:
    single = take(BatchSampler(count, 8, seed=3), 5)
    parts = [take(BatchSampler(count, 8 // world_size, 3, rank, world_size), 5) for rank in range(world_size)]
    assert [flat(batches) for batches in zip(*parts, strict=True)] == single
    for batch in single:
        times = [batch.count(clip) for clip in range(count)]
        assert sum(times) == len(batch) == 8
        assert max(times) - min(times) <= 1
    assert take(BatchSampler(count, 8, seed=3), 2, *divmod(3, 1)) == single[3:]


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="no clips"):
        BatchSampler(0, 4)
    with pytest.raises(ValueError, match="rank=2 of world_size=2"):
        BatchSampler(7, 1, rank=2, world_size=2)
    with pytest.raises(ValueError, match="has 3 batches, cannot start at batch 4"):
        take(BatchSampler(7, 2), 1, 0, 4)


def test_a_loading_process_outlives_the_signals_of_its_group(clips: ClipDataset) -> None:
    def send(*names: str) -> None:
        (worker,) = multiprocessing.active_children()
        for name in names:  # from another process than its parent, as a terminal, launcher or cluster does
            subprocess.run(["sh", "-c", f"kill -s {name} {worker.pid}"], check=True)

    before = {child.pid for child in multiprocessing.active_children()}
    assert not before
    batches = load_batches(clips, ([0, 1] for _ in range(6)), num_workers=1)
    next_batch = iter(batches)
    previous = signal.signal(signal.SIGALRM, lambda *_: send("INT", "TERM", "USR1"))
    signal.setitimer(signal.ITIMER_REAL, 0.2)  # while the new interpreter starts
    try:
        first = next(next_batch)
        send("INT", "TERM", "USR1")
        assert all(batch.robot_actions.equal(first.robot_actions) for batch in next_batch)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert not multiprocessing.active_children()


def test_batches_are_pinned(clips: ClipDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda part: seen.append(part.shape) or part.clone())
    batch = collate_clips([clips[0], clips[1]])
    pinned = pin_memory(batch)  # what the DataLoader calls
    assert type(pinned) is type(batch)
    assert pinned.robot_actions.shape in seen
    assert pinned.frames is not None
    assert pinned.frames.shape in seen
    assert pinned.robot_actions.data_ptr() != batch.robot_actions.data_ptr()
    assert pinned.sources == batch.sources
