import random
from itertools import islice

import numpy as np
import pytest
import torch

from worldmodel.training.loop.order import micro_batches, seed_micro_batch


def of_steps(num_steps: int, slots: range, first_step: int = 0, num_slots: int = 4) -> list[list[int]]:
    return list(islice(micro_batches(23, 2, num_slots, slots, 5, first_step), num_steps * len(slots)))


def test_four_processes_see_what_one_process_sees() -> None:
    alone = of_steps(6, range(4))
    shared = [of_steps(6, range(rank, 4, 4)) for rank in range(4)]
    assert alone == [shared[slot][step] for step in range(6) for slot in range(4)]


def test_starting_later_continues_the_same_order_across_epochs() -> None:
    # 23 clips make 2 steps of 8 an epoch
    assert of_steps(9, range(4))[4 * 4 :] == of_steps(5, range(4), first_step=4)


def test_an_epoch_never_repeats_a_clip_and_epochs_differ() -> None:
    first, second = of_steps(2, range(4)), of_steps(2, range(4), first_step=2)
    assert len({index for batch in first for index in batch}) == 16
    assert first != second


def test_fewer_clips_than_a_batch_are_repeated_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    first = next(iter(micro_batches(2, 16, 1, range(1), 0, 0)))
    assert sorted(first) == [0] * 8 + [1] * 8
    assert "2 clips for a batch of 16" in caplog.text
    assert "data.clip.step" in caplog.text


def test_noise_and_global_generators_are_functions_of_seed_step_and_slot() -> None:
    def draws(*key: int) -> tuple[float, ...]:
        generator = seed_micro_batch(*key)
        return (
            torch.rand((), generator=generator).item(),
            torch.rand(()).item(),
            float(np.random.rand()),
            random.random(),
        )

    reference = draws(0, 5, 1)
    torch.rand(100)
    assert draws(0, 5, 1) == reference
    assert len({draws(*key) for key in [(0, 5, 1), (1, 5, 1), (0, 6, 1), (0, 5, 2), (0, 1, 5)]}) == 5
    assert reference[0] != reference[1]
