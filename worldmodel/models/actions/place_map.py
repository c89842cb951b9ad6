"""Place map: an embedding of the actions for each place of the picture, for small nets from scratch."""

from dataclasses import dataclass
from typing import ClassVar

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
class PlaceMapConfig(PathConfig):
    """A learned embedding for each place; it ties a model to one latent grid."""

    hidden: int = 512  # channels of the layers between

    regimes: ClassVar[tuple[str, ...]] = ("acg", "lacg")
    summary: ClassVar[str] = "a learned embedding for each place"

    def __post_init__(self) -> None:
        check_ranges(self, hidden=(1, 1 << 16))

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        return PlaceMap(shape, self.hidden)


class PlaceMap(nn.Module):
    """One embedding for every video token of a latent frame; zero where there are no actions."""

    def __init__(self, shape: PathShape, hidden: int) -> None:
        super().__init__()
        size = (shape.num_places, shape.width)
        layers = zero_init(mlp(FRAMES_PER_LATENT * shape.action_dim, hidden, size[0] * size[1]))
        self.layers = nn.Sequential(*layers, nn.Unflatten(-1, size))

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        embedded = self.layers(action_groups(actions).flatten(2))
        zero = embedded.new_zeros(embedded.shape[-1])
        return ActionEmbedding(first_block=fill_null(embedded, zero, missing))
