"""open-world (DROID, causal, on Wan2.1 1.3B): one condition per latent frame, of one of its poses.

aligned    a latent frame attends to one token, made of its own condition
adaln      the condition is added to the time embedding; the prompt is empty
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.models.actions.protocol import ActionEmbedding, PathShape
from worldmodel.models.actions.published.first_action import PublishedPath, frame_rows
from worldmodel.types import FRAMES_PER_LATENT, Extras


@dataclass(frozen=True)
class OpenWorldConfig(PublishedPath):
    """Pose of one arm: x y z, Euler angles x y z and gripper."""

    action_dim: int = 7  # numbers of a row
    hidden: int = 1024  # channels of the encoder
    condition_dim: int = 4096  # channels of the condition, as of a text encoder
    mode: Literal["aligned", "adaln"] = "aligned"  # how a condition reaches its latent frame
    # 3 = frame 4 k - 1 (their code since 2026-07-18), 4 = frame 4 k (before); the files do not state theirs.
    frame: int = 3  # whose pose the condition of latent frame k is made of, of its four

    code: ClassVar[str] = "irom-princeton/open-world (no license file)"
    summary: ClassVar[str] = "open-world's condition of each latent frame, from one of its poses"

    def __post_init__(self) -> None:
        sizes = {"hidden": (1, 1 << 16), "condition_dim": (1, 1 << 16)}
        check_ranges(self, frame=(1, FRAMES_PER_LATENT), **sizes)

    @property
    def replaces_prompt(self) -> bool:
        """See PathConfig."""
        return self.mode == "aligned"

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        self.check_width(shape)
        return OpenWorldActions(self, shape.width)


class OpenWorldActions(nn.Module):
    """Encoder, projection, and the layers of the mode; unknown actions are conditions of zeros."""

    def __init__(self, config: OpenWorldConfig, width: int) -> None:
        super().__init__()
        self.frame, self.is_aligned = config.frame, config.mode == "aligned"
        hidden, inner = config.hidden, config.condition_dim
        self.encode = nn.Sequential(
            *(nn.Linear(config.action_dim, hidden), nn.SiLU()),
            *(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden)),
        )
        self.project = nn.Linear(hidden, inner)
        gelu = nn.GELU(approximate="tanh")
        layers = (nn.Linear(inner, width), gelu, nn.Linear(width, width))
        self.embed = nn.Sequential(*(layers if self.is_aligned else layers[:1]))

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        condition = self.condition(frame_rows(actions, extras)).masked_fill(missing[:, :, None], 0.0)
        embedded = self.embed(condition)
        return ActionEmbedding(context=embedded[:, :, None]) if self.is_aligned else ActionEmbedding(embedded)

    def condition(self, rows: Float[Tensor, "b t a"]) -> Float[Tensor, "b f inner"]:
        """One for each latent frame."""
        chosen = torch.cat([rows[:, :1], rows[:, self.frame :: FRAMES_PER_LATENT]], 1)
        output: Tensor = self.project(self.encode(chosen))
        return output
