"""A training loop for many small models in parallel, as one batched program.

`fit` trains one model, over processes and devices, with EMA, checkpoints, resuming and tracking. The small
models of a study need none of that, and there are many of them. Here all seeds of a cell are slices of the
same tensors [s ...] and share every kernel call. Seeds share no parameter, so the gradient of the sum of
their losses is the gradient of each. Callers can write checkpoints between the steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

B = TypeVar("B")


@dataclass(frozen=True)
class StackLoss:
    """The loss of one step, and the values it reports."""

    total: Float[Tensor, "*s"]  # of each seed, or their sum
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # to log, of each seed


def train_stack(
    batches: Iterable[B],
    loss: Callable[[B], StackLoss],
    optimizer: torch.optim.Optimizer,
    *,
    schedule: LRScheduler | None = None,
    max_norm: float | None = None,
) -> Iterator[dict[str, Tensor]]:
    """One optimizer step per batch; yields the terms of its loss after each.

    Args:
        batches: drawn one by one, each after the step before it.
        loss: of one batch, for all seeds.
        optimizer: of the parameters of all seeds.
        schedule: of the learning rate, advanced after every step.
        max_norm: at which the gradient of all seeds together is clipped; None: no clipping.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for batch in batches:
        losses = loss(batch)
        optimizer.zero_grad()
        losses.total.sum().backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        yield {name: value.detach() for name, value in losses.parts.items()}
