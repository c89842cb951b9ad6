"""Runs the step function inside one `forward`, with gradient checkpointing and compilation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.models.backbone import checkpoint_blocks
from worldmodel.training.loop.distributed import differentiable_inside
from worldmodel.types import Losses

StepFn = Callable[[Any, Any, torch.Generator], Losses]


class Stepper(nn.Module):
    """Calls `step_fn` inside `forward`, where ddp and fsdp2 hook in, for any call it makes on the model."""

    def __init__(self, model: nn.Module, step_fn: StepFn) -> None:
        super().__init__()
        self.model = model
        self._step_fn = step_fn

    def forward(self, batch: Any, generator: torch.Generator) -> Losses:
        """Losses of one micro-batch."""
        with differentiable_inside(self):
            return self._step_fn(self.model, batch, generator)


def keeps_rows(model: nn.Module) -> bool:
    """Whether a contrast of the model spans the micro-batches of a step (mcl.rows)."""
    return any(isinstance(part, MechanisticContrast) and part.config.rows for part in model.modules())


def switch_on(model: nn.Module, gradient_checkpointing: bool, compile_blocks: bool) -> None:
    """Enable gradient checkpointing and regional torch.compile in trained submodules that support them."""
    if gradient_checkpointing and not checkpoint_blocks(model):
        raise ValueError(f"gradient_checkpointing is set, but no part of {type(model).__name__} has it")
    if compile_blocks:
        if any(isinstance(part, MechanisticContrast) for part in model.modules()):
            # Contrasts go backward through a block twice, so its memory must survive the first time.
            torch._functorch.config.donated_buffer = False
        parts: list[Any] = [part for part in model.modules() if getattr(part, "_repeated_blocks", None)]
        able = [part for part in parts if any(p.requires_grad for p in part.parameters())]
        for part in able:
            part.compile_repeated_blocks()
        if not able:
            model.compile()
