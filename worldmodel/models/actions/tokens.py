"""Tokens: cross-attention from every video token to the four transitions of its own latent frame."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.models.actions.protocol import (
    ActionEmbedding,
    GatedTokens,
    PathConfig,
    PathShape,
    action_groups,
    fill_null,
    mlp,
)
from worldmodel.types import FRAMES_PER_LATENT, Extras


@dataclass(frozen=True)
class TokensConfig(PathConfig):
    """Attention to each action, for actions that are long vectors."""

    hidden: int = 256  # channels of the layers between

    regimes: ClassVar[tuple[str, ...]] = ("acg", "lacg")
    summary: ClassVar[str] = "attention to each action"
    cross_attends: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ranges(self, hidden=(1, 1 << 16))

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        return ActionTokens(shape, self.hidden)


class ActionTokens(GatedTokens):
    """One token per transition; they enter with gates that start at zero."""

    def __init__(self, shape: PathShape, hidden: int) -> None:
        super().__init__()
        self.layers = mlp(shape.action_dim, hidden, shape.width)
        self.gates = nn.Parameter(torch.zeros(shape.num_layers, shape.num_heads))
        self.null = nn.Parameter(0.02 * torch.randn(shape.width))
        # Tells the four transitions of a latent frame apart.
        self.position = nn.Parameter(0.02 * torch.randn(FRAMES_PER_LATENT, shape.width))

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        tokens = fill_null(self.layers(action_groups(actions)), self.null, missing)
        return ActionEmbedding(tokens=tokens + self.position)
