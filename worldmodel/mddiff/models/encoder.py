"""Encodes images to scalar concepts, and each concept separately to a token for cross-attention."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.md_vae.stacked_linear import StackedLinear

REDUCTION = 16  # downsampling per side after four strided convolutions


class ResidualUnit(nn.Module):
    """ReLU, 3x3, batch norm, ReLU, 1x1, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        """The refined features."""
        return x + self.layers(x)


class ConceptEncoder(nn.Module):
    """EncDiff's Encoder4: four strided convolutions, two residual units, one linear layer to the scalars."""

    def __init__(self, image_size: int, num_concepts: int, width: int = 128) -> None:
        super().__init__()
        if image_size % REDUCTION:
            raise ValueError(f"image_size must be a multiple of {REDUCTION}, got {image_size}")
        self.layers = nn.Sequential(
            *(_halving(3, width), nn.ReLU()),
            *(_halving(width, width), nn.ReLU()),
            # No activation here, as in the published network.
            _halving(width, width),
            *(_halving(width, width), nn.ReLU()),
            *(ResidualUnit(width), nn.BatchNorm2d(width), nn.ReLU(), ResidualUnit(width)),
            nn.Flatten(),
            nn.Linear(width * (image_size // REDUCTION) ** 2, num_concepts),
        )

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b k"]:
        """One scalar per concept, from images in [-1, 1]."""
        concepts: Tensor = self.layers(images)
        return concepts


class ConceptTokens(nn.Module):
    """One MLP per concept, which maps only that concept's scalar to its token."""

    def __init__(self, num_concepts: int, token_dim: int, hidden: tuple[int, int] = (64, 128)) -> None:
        super().__init__()
        streams = [torch.default_generator] * num_concepts
        self.layers = nn.Sequential(
            *(StackedLinear(1, hidden[0], streams), nn.ELU()),
            *(StackedLinear(hidden[0], hidden[1], streams), nn.ELU()),
            StackedLinear(hidden[1], token_dim, streams),
        )

    def forward(self, concepts: Float[Tensor, "b k"]) -> Float[Tensor, "b k m"]:
        """Tokens in the order of the concepts."""
        return rearrange(self.layers(rearrange(concepts, "b k -> k b 1")), "k b m -> b k m")


def _halving(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 4, stride=2, padding=1),
        nn.BatchNorm2d(outputs),
    )
