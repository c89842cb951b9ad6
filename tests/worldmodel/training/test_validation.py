from types import SimpleNamespace
from typing import Any

import torch

from worldmodel.training.validation import mean_over_processes, share_out


def process(rank: int, world: int) -> Any:
    return SimpleNamespace(
        process_index=rank, num_processes=world, device="cpu", reduce=lambda tensor, reduction: tensor
    )


def test_every_process_gets_as_many_items_and_each_item_counts_once() -> None:
    shares = [list(share_out("abcde", process(rank, 2))) for rank in range(2)]
    assert [len(share) for share in shares] == [3, 3]
    counted = sorted(item for share in shares for _, weight, item in share if weight)
    assert counted == list("abcde")


def test_the_mean_is_weighted_by_clips() -> None:
    values = [
        (3, {"loss": torch.tensor(1.0)}),
        (1, {"loss": torch.tensor(5.0)}),
        (0, {"loss": torch.tensor(9.0)}),
    ]
    assert mean_over_processes(values, process(0, 1)) == {"loss": 2.0}
    assert mean_over_processes([], process(0, 1)) == {}
