"""Validation of a world model: the loss on held-out clips with fixed noise, and rollouts as videos."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from worldmodel.checked import check_ranges
from worldmodel.data.dataset import ClipDataset, collate_clips
from worldmodel.data.video import write_video
from worldmodel.evaluation.metrics.video import psnr
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.report.videos import side_by_side
from worldmodel.training.loop.distributed import move
from worldmodel.training.loop.order import seed_micro_batch
from worldmodel.training.loop.tracking import Tracker
from worldmodel.types import Actions, evenly_spread, to_unit_range

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ValidationConfig:
    """What is measured on held-out episodes."""

    num_clips: int = 32  # clips for the loss, evenly spaced over the validation split; 0 = none
    num_rollouts: int = 2  # how many of those are also rolled out, scored and written as videos
    num_inference_steps: int = 8  # Euler steps of a rollout

    def __post_init__(self) -> None:
        check_ranges(self, num_inference_steps=(1, 1000))


class Validation:
    """Called by the training loop on every process; each evaluates its share of the clips."""

    def __init__(
        self, clips: ClipDataset, config: ValidationConfig, folder: Path, batch_size: int, seed: int
    ) -> None:
        self.clips, self.config, self.folder = clips, config, folder
        self.batch_size, self.seed = batch_size, seed

    def __call__(
        self, model: WorldModel, step: int, accelerator: Accelerator, tracker: Tracker | None
    ) -> dict[str, float]:
        """Mean of every loss term, and PSNR of the rollouts in dB."""
        chosen = evenly_spread(len(self.clips), self.config.num_clips)
        batches = [chosen[i : i + self.batch_size] for i in range(0, len(chosen), self.batch_size)]
        losses = [
            (weight * len(numbers), self._losses(model, numbers, slot, accelerator))
            for slot, weight, numbers in share_out(batches, accelerator)
        ]
        scores = [
            (weight, self._roll_out(model, number, f"step_{step:08d}_clip{slot}", accelerator, tracker))
            for slot, weight, number in share_out(chosen[: self.config.num_rollouts], accelerator)
        ]
        return {**mean_over_processes(losses, accelerator), **mean_over_processes(scores, accelerator)}

    def _losses(
        self, model: WorldModel, numbers: Sequence[int], slot: int, accelerator: Accelerator
    ) -> dict[str, Tensor]:
        batch = move(collate_clips([self.clips[number] for number in numbers]), accelerator.device)
        generator = seed_micro_batch(self.seed, 0, slot)
        with torch.no_grad(), accelerator.autocast():
            losses = world_model_step(model, batch, generator)
        return {"loss": losses.total.detach(), **losses.parts}

    def _roll_out(
        self, model: WorldModel, number: int, name: str, accelerator: Accelerator, tracker: Tracker | None
    ) -> dict[str, Tensor]:
        batch = move(collate_clips([self.clips[number]]), accelerator.device)
        assert batch.frames is not None, "validation clips carry frames"
        num_given = model.config.num_given
        actions = Actions(batch.robot_actions, extras=batch.extras)
        with accelerator.autocast():
            # The precision is that of the training, set by the line above.
            rollout = RolloutPipeline(model, mixed_precision="no").rollout(
                batch.frames[:, :num_given],
                Actions() if model.config.regime == "no_action" else actions,
                num_frames=batch.frames.shape[1],
                num_inference_steps=self.config.num_inference_steps,
                generator=seed_micro_batch(self.seed, 1, number),
                embodiments=[model.normalizer.embodiments[robot] for robot in batch.embodiment.tolist()],
            )
        real, made = to_unit_range(batch.frames[0].cpu()), rollout.frames[0]
        video = side_by_side(real, made)
        try:
            write_video(self.folder / f"{name}.mp4", iter(video), model.contract.fps)
        except OSError as error:  # a full disk must not end a run with good weights
            log.warning("rollout %s was not written: %s", name, error)
        if tracker is not None:
            tracker.video(int(name.split("_")[1]), name.rpartition("_")[2], video, model.contract.fps)
        return {"rollout_psnr": psnr(made[num_given:], real[num_given:]).mean()}


def share_out(items: Sequence[Any], accelerator: Accelerator) -> Iterator[tuple[int, int, Any]]:
    """(slot, weight, item) of this process; all processes get equally many, as fsdp2 needs.

    Padding has weight 0.
    """
    world = accelerator.num_processes
    for slot in range(accelerator.process_index, -(-len(items) // world) * world, world):
        yield slot, int(slot < len(items)), items[slot % len(items)]


def mean_over_processes(
    values: Sequence[tuple[int, Mapping[str, Tensor]]], accelerator: Accelerator
) -> dict[str, float]:
    """Weighted mean of every named value; empty if there are none."""
    if not values:
        return {}
    names = list(values[0][1])
    sums = [sum(weight * float(named[name]) for weight, named in values) for name in names]
    packed = torch.tensor([sum(weight for weight, _ in values), *sums], dtype=torch.float64)
    if accelerator.num_processes > 1:
        packed = accelerator.reduce(packed.to(accelerator.device), reduction="sum")
    total, *summed = packed.tolist()
    return {name: value / total for name, value in zip(names, summed, strict=True)}
