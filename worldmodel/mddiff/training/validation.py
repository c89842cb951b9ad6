"""Validation of a concept model during training: its loss with fixed noise, its scores and its images."""

from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from worldmodel.checked import check_ranges
from worldmodel.mddiff.data.types import FactorDataset
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.objectives.first_stage import VqGan, vq_step
from worldmodel.mddiff.objectives.mddiff import MDDiffObjective, mddiff_step
from worldmodel.mddiff.training.scores import ConceptScores, ScoreConfig
from worldmodel.training.loop.order import seed_micro_batch
from worldmodel.training.loop.tracking import Tracker
from worldmodel.types import Losses, to_unit_range


@dataclass(frozen=True)
class ConceptValidationConfig:
    """What to measure; on training images, as is usual for these benchmarks."""

    num_images: int = 128  # random images for the loss; 0 = no validation
    num_decoded: int = 16  # how many of those are also decoded from their codes and compared
    num_inference_steps: int = 20  # DDIM steps of decoding
    scores: ScoreConfig = field(default_factory=ScoreConfig)  # quick disentanglement scores

    def __post_init__(self) -> None:
        check_ranges(self, num_inference_steps=(1, 1000))


class ConceptValidation:
    """Validation called by the training loop on every process; all compute the same numbers."""

    def __init__(
        self, data: FactorDataset, config: ConceptValidationConfig, objective: MDDiffObjective, seed: int
    ) -> None:
        self.config, self.objective, self.seed = config, objective, seed
        self.images = data.images(some_indices(len(data), config.num_images, seed))
        self.scores = ConceptScores(data, config.scores, seed) if config.scores.num_pictures else None

    def __call__(
        self, model: MDDiff | VqGan, step: int, accelerator: Accelerator, tracker: Tracker | None
    ) -> dict[str, float]:
        """Loss and its terms; for concept models also scores and the error of decoded images."""
        images = self.images.to(accelerator.device)
        generator = seed_micro_batch(self.seed, 0, 0)
        if isinstance(model, VqGan):
            return _as_floats(vq_step(model, images, generator))
        # MCL's features are derivatives, which need a graph even without training.
        with torch.set_grad_enabled(model.contrast is not None), accelerator.autocast():
            measured = _as_floats(mddiff_step(model, images, generator, self.objective))
        if self.scores is not None:
            measured |= self.scores(model, step, accelerator, tracker)
        if count := self.config.num_decoded:
            measured["decoded_mse"] = decoded_error(model, images[:count], self.config.num_inference_steps)
        return measured


def some_indices(num_items: int, count: int, seed: int) -> np.ndarray:
    """Distinct random indices; all of them if there are no more than `count`."""
    if count >= num_items:
        return np.arange(num_items)
    return np.sort(np.random.default_rng(seed).choice(num_items, count, replace=False))


def decoded_error(model: MDDiff, images: Tensor, num_steps: int) -> float:
    """Mean squared error in [0, 1] of images decoded from their codes."""
    decoded = model.decode(model.encode(images), num_steps=num_steps)
    return float((decoded - to_unit_range(images)).square().mean())


def _as_floats(losses: Losses) -> dict[str, float]:
    return {
        "loss": float(losses.total.detach()),
        **{name: float(part) for name, part in losses.parts.items()},
    }
