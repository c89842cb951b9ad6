"""Two ranks of a distributed run, forked: torchrun without the seconds of importing torch."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.context import ForkProcess

import torch
from accelerate.state import AcceleratorState


def in_two_processes(work: Callable[[], bool]) -> None:
    """Call `work` in two processes, as torchrun would start them; both return True."""
    ranks = start_two_processes(work)
    for process in ranks:
        process.join(240)
    assert [process.exitcode for process in ranks] == [0, 0]


def start_two_processes(work: Callable[[], bool]) -> list[ForkProcess]:
    """The same, without waiting for them."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(work, rank, port)) for rank in range(2)]
    for process in ranks:
        process.start()
    return ranks


def _rank(work: Callable[[], bool], rank: int, port: int) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    )
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    is_finished = work()
    torch.distributed.destroy_process_group()
    assert is_finished
