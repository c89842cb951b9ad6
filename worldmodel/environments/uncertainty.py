"""Uncertainty signals of a world model, which rise when its frames are unreliable. Measured, not learned.

spread mean difference between the frames and those of the same actions with another noise seed round_trip
mean difference between the last frame and its reconstruction by the autoencoder
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.model import WorldModel
from worldmodel.pipelines.session import Session, fitted

HALF_LEVEL = 1.5  # sum of both signals, in gray levels, at which the level is one half


class UncertaintyMeter:
    """Both signals of a block, in gray levels (0 to 255), one number per row."""

    NAMES: ClassVar[tuple[str, ...]] = ("spread", "round_trip")

    def __init__(self, model: WorldModel, seed: int = 0) -> None:
        self.model = model
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(
        self, before: Session, actions: Float[Tensor, "b n a"], frames: Float[Tensor, "b n 3 H W"]
    ) -> dict[str, Float[np.ndarray, " b"]]:
        """Measure a block; `before` is a fork from before the block and is not changed."""
        last = fitted(self.model, frames[:, -1:].to(self.model.device))
        again = self.model.decode(self.model.encode(last))
        other = before.fork(generator=self._generator).step(actions)
        return {
            "spread": 255 * (other - frames).abs().flatten(1).mean(1).numpy(),
            "round_trip": 255 * (again - last).abs().flatten(1).mean(1).cpu().numpy(),
        }

    @staticmethod
    def level(signals: Mapping[str, float]) -> float:
        """Both signals as one number between 0 (reliable) and 1 (unreliable)."""
        total = sum(signals[name] for name in UncertaintyMeter.NAMES)
        return total / (total + HALF_LEVEL)
