"""A small model, its data and its step function, for tests of the loop, in this process or as a script.

torchrun --nproc_per_node 2 -m tests.support.toy_run FOLDER [--resume] steps=6 ...
"""

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from worldmodel.cli_errors import STOPPED
from worldmodel.config import load_config
from worldmodel.training.loop.fit import FitConfig, FitResult, fit
from worldmodel.training.loop.tracking import Tracker
from worldmodel.types import Losses

NUM_ITEMS = 20  # the default batch of 8 does not divide it: epochs have tails


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(torch.nn.functional.gelu(self.linear(x)))


class ToyModel(nn.Module):
    """Has a frozen part, repeated blocks, a changing buffer, and a part with its own learning rate."""

    _repeated_blocks = ("Block",)

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, width).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.action_head = nn.Linear(width, 4)
        self.register_buffer("num_calls", torch.zeros(()))

    def predict(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        hidden = self.frozen(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.action_head(hidden)


@dataclass(frozen=True)
class ToyBatch:
    x: Tensor
    sources: tuple[str, ...]

    def to(self, device: torch.device) -> "ToyBatch":
        return ToyBatch(self.x.to(device), self.sources)


def toy_step(model: ToyModel, batch: ToyBatch, generator: torch.Generator) -> Losses:
    """Denoise with noise from the given generator; calls a method, not `forward`, as real steps may."""
    noise = torch.randn(batch.x.shape, generator=generator)
    loss = (model.predict(batch.x + 0.1 * noise) - batch.x).square().mean()
    return Losses(loss, {"denoise": loss.detach()})


class ToyData:
    def __init__(self, num_bad: int = 0) -> None:
        self.x = torch.randn(NUM_ITEMS, 4, generator=torch.Generator().manual_seed(7))
        self.x[:num_bad] = float("nan")

    def __len__(self) -> int:
        return NUM_ITEMS


def toy_load(
    dataset: ToyData, batches: Iterable[list[int]], num_workers: int, pin_memory: bool
) -> Iterator[ToyBatch]:
    return (ToyBatch(dataset.x[index], tuple(f"episode{i}.hdf5" for i in index)) for index in batches)


def toy_validate(
    model: ToyModel, step: int, accelerator: Accelerator, tracker: Tracker | None
) -> dict[str, float]:
    """Draws from the global generator on purpose: the loop must not care."""
    x = torch.rand(8, 4)
    return {"loss": (model.predict(x) - x).square().mean().item()}


def toy_model() -> ToyModel:
    torch.manual_seed(3)
    return ToyModel()


def toy_fit(folder: Path, overrides: list[str], resume: bool = False, num_bad: int = 0) -> FitResult:
    defaults = ["steps=10", "global_batch=8", "micro_batch=4", "log_every=1", "checkpoint_every=3"]
    defaults += ["machine.device=cpu", "trackers=[]", "optim.ema_decay=0.9", "optim.lr=0.01"]
    defaults += ["optim.lr_multipliers={'action_*':5.0}", "optim.schedule=cosine", "optim.warmup_steps=2"]
    config = load_config(FitConfig, None, [*defaults, *overrides])
    return fit(
        toy_step,
        toy_model(),
        ToyData(num_bad),
        config,
        folder,
        load=toy_load,
        validate=toy_validate if config.validate_every else None,
        resume=resume,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--num-bad", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    result = toy_fit(arguments.folder, arguments.overrides, arguments.resume, arguments.num_bad)
    sys.exit(0 if result.is_finished else STOPPED)
