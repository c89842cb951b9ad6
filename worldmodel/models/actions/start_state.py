"""Start state: the joints that were measured at the first frame, which actions and picture may not tell."""

from collections.abc import Mapping
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
    fill_null,
    mlp,
    zero_init,
)
from worldmodel.types import FRAMES_PER_LATENT, Extras, Row, Transitions


@dataclass(frozen=True)
class StartStateConfig(PathConfig):
    """The measured state at the first frame, in the robot's own units; no effect where none was recorded."""

    size: int = 32  # numbers of a state at most; shorter ones are padded
    hidden: int = 256  # channels of the layers between

    summary: ClassVar[str] = "the robot's measured state at the first frame"

    def __post_init__(self) -> None:
        check_ranges(self, size=(1, 4096), hidden=(1, 1 << 16))

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        """The padded state, and whether there is one: the same row for every transition."""
        return {"start_state": Row((self.size + 1,))}

    def read(self, clip: Transitions) -> Extras:
        """See PathConfig."""
        row = torch.zeros(self.size + 1)
        if clip.state is not None:
            if len(clip.state) > self.size:
                raise ValueError(
                    f"{clip.source}: a state has {len(clip.state)} numbers, expected at most {self.size}: "
                    f"set model.actions.start_state.size={len(clip.state)}"
                )
            row[: len(clip.state)], row[-1] = clip.state, 1.0
        return {"start_state": row.expand(len(clip.actions), -1)}

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        return StartState(self.size, shape.width, self.hidden)


class StartState(nn.Module):
    """One embedding for each latent frame, all alike."""

    def __init__(self, size: int, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = zero_init(mlp(size, hidden, width))

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        state, is_known = extras["start_state"][:, ::FRAMES_PER_LATENT].tensor_split([-1], -1)
        embedded = is_known * self.layers(state)
        return ActionEmbedding(fill_null(embedded, embedded.new_zeros(embedded.shape[-1]), missing))
