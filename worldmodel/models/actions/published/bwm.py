"""BWM (RoboTwin, on Wan2.2 5B): a context token per frame in the place of the prompt, and AdaLN.

All latent frames attend to the tokens of all frames. The modulation of latent frame k is made of its four
rows; that of latent frame 0 of the first row, four times.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.models.actions.protocol import ActionEmbedding, PathShape
from worldmodel.models.actions.published.first_action import PublishedPath, each_frame, frame_rows
from worldmodel.types import FRAMES_PER_LATENT, Extras


@dataclass(frozen=True)
class BwmConfig(PublishedPath):
    """Poses of both arms: x y z, Euler angles x y z and gripper, left before right."""

    action_dim: int = 14  # numbers of a row
    # As in its code; false: the latest frames alone.
    keep_first: bool = True  # the history of a video is its first frame and the latest ones

    code: ClassVar[str] = "boundless-large-model/boundless-world-model (Apache-2.0)"
    summary: ClassVar[str] = "BWM's tokens of all frames in the place of the prompt, and its modulation"
    cross_attends: ClassVar[bool] = True

    @property
    def replaces_prompt(self) -> bool:
        """See PathConfig."""
        return True

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        self.check_width(shape)
        return BwmActions(shape.action_dim, shape.width)


class BwmActions(nn.Module):
    """Both embedders of BWM; unknown actions are rows of zeros, the middle of the range."""

    def __init__(self, action_dim: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(action_dim, width), nn.GELU(), nn.Linear(width, width))
        inputs, hidden = FRAMES_PER_LATENT * action_dim, 4 * width
        self.modulation = nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, width))

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        rows = frame_rows(actions, extras).masked_fill(each_frame(missing)[:, :, None], 0.0)
        first = rows[:, :1].expand(-1, FRAMES_PER_LATENT, -1)
        groups = torch.cat([first, rows[:, 1:]], 1).unflatten(1, (-1, FRAMES_PER_LATENT)).flatten(2)
        return ActionEmbedding(frames=self.modulation(groups), context=self.tokens(rows))
