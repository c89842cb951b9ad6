"""Optimizer, learning-rate schedule (a function of the step alone) and moving average of the weights."""

import fnmatch
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW with warm-up, a constant phase and an optional cosine decay."""

    lr: float = 1e-4  # learning rate of the constant phase
    lr_multipliers: dict[str, float] = field(default_factory=dict)  # parameter-name pattern -> factor on lr
    betas: tuple[float, float] = (0.9, 0.95)  # decay of the first and second moment, per step
    weight_decay: float = 0.01  # decoupled; vectors (biases, norms) are never decayed
    max_grad_norm: float = 1.0  # gradient norm is clipped to this; 0 = no clipping
    warmup_steps: int = 0  # steps of linear rise from 0
    schedule: Literal["constant", "cosine"] = "constant"  # shape after the warm-up
    decay_fraction: float = 0.5  # cosine: the last fraction of all steps that decays
    final_lr_fraction: float = 0.02  # cosine: lr at the last step, as a fraction of lr
    ema_decay: float = 0.0  # moving average of the trained weights, per step; 0 = none
    ema_modules: tuple[str, ...] = ()  # parameter-name patterns that are averaged; empty = all trained ones

    def __post_init__(self) -> None:
        if self.lr <= 0 or min(self.lr_multipliers.values(), default=1.0) < 0:
            raise ValueError(f"lr must be > 0 and multipliers >= 0, got {self.lr} and {self.lr_multipliers}")
        if not 0 < self.decay_fraction <= 1 or not 0 <= self.final_lr_fraction <= 1:
            raise ValueError(
                "decay_fraction is in (0, 1] and final_lr_fraction in [0, 1], "
                f"got {self.decay_fraction} and {self.final_lr_fraction}"
            )
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay is in [0, 1), got {self.ema_decay}")
        if self.warmup_steps < 0 or self.max_grad_norm < 0 or self.weight_decay < 0:
            raise ValueError("warmup_steps, max_grad_norm and weight_decay must be >= 0")


def lr_factor(step: int, num_steps: int, config: OptimConfig) -> float:
    """Factor on the learning rate of 0-based `step` out of `num_steps`."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    start = num_steps * (1 - config.decay_fraction)
    progress = min(max((step - start) / max(num_steps - 1 - start, 1), 0.0), 1.0)
    return config.final_lr_fraction + (1 - config.final_lr_fraction) * 0.5 * (
        1 + math.cos(math.pi * progress)
    )


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter of everything that trains, in the fixed order of the model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with one group per (factor on lr, decayed or not); groups have keys `multiplier` and `names`."""
    grouped: dict[tuple[float, bool], list[tuple[str, nn.Parameter]]] = defaultdict(list)
    for name, parameter in trainable_parameters(model).items():
        grouped[_multiplier(name, config), parameter.ndim >= 2].append((name, parameter))
    if not grouped:
        raise ValueError("nothing to train: every parameter of the model is frozen")
    for pattern in config.lr_multipliers:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in trainable_parameters(model)):
            log.warning("lr_multipliers: no trained parameter matches %r, so it does nothing", pattern)
    groups = [
        {
            "params": [parameter for _, parameter in members],
            "names": [name for name, _ in members],
            "lr": config.lr * multiplier,
            "multiplier": multiplier,
            "weight_decay": config.weight_decay if is_decayed else 0.0,
        }
        for (multiplier, is_decayed), members in grouped.items()
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def _multiplier(name: str, config: OptimConfig) -> float:
    for pattern, factor in config.lr_multipliers.items():
        if fnmatch.fnmatchcase(name, pattern):
            return factor
    return 1.0


def describe_groups(optimizer: torch.optim.Optimizer) -> list[str]:
    """One line per parameter group, with its effective learning rate."""
    return [
        f"lr {group['lr']:.3g} (x{group['multiplier']:g}), weight decay {group['weight_decay']:g}: "
        f"{sum(p.numel() for p in group['params']):,} parameters in {len(group['params'])} tensors, "
        f"e.g. {group['names'][0]}"
        for group in optimizer.param_groups
    ]


def set_lr(optimizer: torch.optim.Optimizer, factor: float, config: OptimConfig) -> None:
    """Set every group's learning rate to lr * multiplier * factor."""
    for group in optimizer.param_groups:
        group["lr"] = config.lr * group["multiplier"] * factor


class ExponentialMovingAverage:
    """float32 average of the trained weights; the decay ramps up as min(decay, (1 + n) / (10 + n))."""

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        self.decay = config.ema_decay
        self.num_updates = 0
        self._parameters = {
            name: parameter
            for name, parameter in trainable_parameters(model).items()
            if not config.ema_modules
            or any(fnmatch.fnmatchcase(name, pattern) for pattern in config.ema_modules)
        }
        if not self._parameters:
            raise ValueError(f"ema_modules {config.ema_modules} matches no trained parameter")
        self.average = {name: p.detach().float().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        averages = [local_shard(self.average[name]) for name in self._parameters]
        current = [local_shard(parameter).float() for parameter in self._parameters.values()]
        torch._foreach_lerp_(averages, current, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside this block the model has the averaged weights; its own are restored afterwards."""
        kept = {name: local_shard(parameter.detach()).clone() for name, parameter in self._parameters.items()}
        try:
            self._write({name: local_shard(average) for name, average in self.average.items()})
            yield
        finally:
            self._write(kept)

    @torch.no_grad()
    def _write(self, shards: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            local_shard(parameter).copy_(shards[name])


def local_shard(tensor: Tensor) -> Tensor:
    """The local part of a sharded tensor; a plain tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def load_full(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into `target`, keeping only this process's shard of it."""
    if isinstance(target, DTensor):
        whole = distribute_tensor(whole.to(target.device), target.device_mesh, target.placements).to_local()
    local_shard(target).copy_(whole)
