"""AdaLN: four transitions make one embedding per latent frame, added to the time embedding.

Wan turns its time embedding into the modulation of every block and of the output head, so the sum reaches all
of them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.models.actions.protocol import (
    ActionEmbedding,
    PathConfig,
    PathShape,
    action_groups,
    fill_null,
    mlp,
    zero_init,
)
from worldmodel.types import FRAMES_PER_LATENT, Extras


@dataclass(frozen=True)
class AdalnConfig(PathConfig):
    """Modulation of every block; every model has it, but those that were published with their own."""

    hidden: int = 256  # channels of the layers between

    summary: ClassVar[str] = "modulation of every block"

    def __post_init__(self) -> None:
        check_ranges(self, hidden=(1, 1 << 16))

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        return Adaln(shape.action_dim, shape.width, self.hidden)


class Adaln(nn.Module):
    """One embedding per latent frame; the null embedding where there are no actions."""

    def __init__(self, action_dim: int, width: int, hidden: int) -> None:
        super().__init__()
        self.null = nn.Parameter(torch.zeros(width))
        inputs = FRAMES_PER_LATENT * action_dim
        self.layers = zero_init(mlp(inputs, hidden, width)) if action_dim else None

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        if self.layers is None:
            return ActionEmbedding(self.null.expand(*missing.shape, -1))
        embedded = self.layers(action_groups(actions).flatten(2))
        return ActionEmbedding(fill_null(embedded, self.null, missing))
