"""Rows of all processes in one contrast, without differentiating through communication.

Every process computes the loss of all rows. Only its own rows have gradients, so that the gradients of all
processes add up to the full gradient. Data-parallel training averages them: each process multiplies its own
by the number of processes.
"""

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor


def num_processes() -> int:
    """Number of processes that train together; 1 without a launcher."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(rows: Shaped[Tensor, "*s n d"]) -> Shaped[Tensor, "*s m d"]:
    """The rows of all processes, by rank; every process must contribute equally many."""
    if num_processes() == 1:
        return rows
    sent = rows.detach().contiguous()
    sent = sent.to(torch.uint8) if sent.dtype == torch.bool else sent
    received = [torch.empty_like(sent) for _ in range(num_processes())]
    dist.all_gather(received, sent)
    parts = [part.to(rows.dtype) for part in received]
    parts[dist.get_rank()] = rows
    return torch.cat(parts, -2)


def scale_gradient(loss: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Identity that multiplies the gradient by the number of processes, whose mean is then the full one."""
    constant = loss.detach()
    return constant + num_processes() * (loss - constant)
