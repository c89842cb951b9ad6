"""What published models have in common: one row of absolute poses per frame, the first frame included.

frame         0   1   2   3   4        row 0 is the pose at frame 0: the action before the first
row           0   1   2   3   4        row i + 1 is our action i, which leads from frame i to frame i + 1
latent frame  0 |----- 1 -----|
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from worldmodel.models.actions.protocol import PathConfig, PathShape
from worldmodel.types import FRAMES_PER_LATENT, Extras, Row, Transitions

PREVIOUS = "previous_action"


@dataclass(frozen=True)
class PublishedPath(PathConfig):
    """Sizes that the published weights fix, and where these came from."""

    action_dim: int = 1  # numbers of a row
    origin: str = ""  # of the weights: hub id and file
    license: str = ""  # as their model card states it; empty: it states none

    code: ClassVar[str] = ""  # where the model's own code is, with its license
    regimes: ClassVar[tuple[str, ...]] = ("acg",)

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        """The action before each transition."""
        return {PREVIOUS: Row((self.action_dim,), is_action=True)}

    @property
    def credits(self) -> str:
        """Its line in the model card."""
        return (
            f"{self.origin or 'origin unknown'}; license: {self.license or 'none stated'}; code: {self.code}"
        )

    def read(self, clip: Transitions) -> Extras:
        """Needs absolute poses, at most as many numbers as the published weights take."""
        if clip.changes:
            raise ValueError(
                f"{clip.source}: the published model takes absolute poses, got changes "
                f"({', '.join(clip.changes)}; with data.clip.merge=sum all are)"
            )
        rows = torch.cat([clip.before[-1:].to(clip.actions), clip.actions[:-1]])
        room = self.action_dim - rows.shape[1]
        if room < 0:
            raise ValueError(
                f"{clip.source}: the published model takes actions of {self.action_dim} dimensions, got "
                f"{rows.shape[1]} ({', '.join(clip.names)})"
            )
        return {PREVIOUS: F.pad(rows, (0, room)).float()}

    def check_width(self, shape: PathShape) -> None:
        """Refuse actions that the published layers have no columns for."""
        if shape.action_dim != self.action_dim:
            raise ValueError(
                f"the published model takes actions of {self.action_dim} dimensions, the data have "
                f"{shape.action_dim}"
            )


def frame_rows(actions: Float[Tensor, "b n a"], extras: Extras) -> Float[Tensor, "b t a"]:
    """One row per frame."""
    return torch.cat([extras[PREVIOUS][:, :1].to(actions), actions], 1)


def each_frame(missing: Bool[Tensor, "b f"]) -> Bool[Tensor, "b t"]:
    """What is said of latent frames, for each frame."""
    return missing.repeat_interleave(FRAMES_PER_LATENT, 1)[:, FRAMES_PER_LATENT - 1 :]
