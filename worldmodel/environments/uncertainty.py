"""Signals that rise when a dream should not be believed. They are measured, not learned.

spread       mean difference between the frames and those of the same actions under other noise
round_trip   mean difference between the last frame and itself after the autoencoder
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.model import WorldModel
from worldmodel.pipelines.session import Session

HALF_LEVEL = 1.5  # gray levels of both signals together at which the bar stands at one half


class DistrustMeter:
    """Both signals of a block, in gray levels (0 to 255), one number per row."""

    NAMES: ClassVar[tuple[str, ...]] = ("spread", "round_trip")

    def __init__(self, model: WorldModel, seed: int = 0) -> None:
        self.model = model
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(
        self, before: Session, actions: Float[Tensor, "b n a"], frames: Float[Tensor, "b n 3 H W"]
    ) -> dict[str, Float[np.ndarray, " b"]]:
        """`before` is a fork from before the block; it stays as it is."""
        last = frames[:, -1:]
        again = self.model.decode(self.model.encode(last))
        other = before.fork(generator=self._generator).step(actions)
        return {
            "spread": 255 * (other - frames).abs().flatten(1).mean(1).numpy(),
            "round_trip": 255 * (again - last).abs().flatten(1).mean(1).numpy(),
        }

    @staticmethod
    def level(signals: Mapping[str, float]) -> float:
        """Both signals as one number from 0 (looks right) towards 1 (should not be believed)."""
        total = sum(signals[name] for name in DistrustMeter.NAMES)
        return total / (total + HALF_LEVEL)
