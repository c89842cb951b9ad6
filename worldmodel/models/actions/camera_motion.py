"""Camera motion: how a camera that moves, as one on a wrist, sees what stands still.

A point at p1 = depth (u, v, 1) of a frame was at p0 = G p1 + g of the frame before, for views [M | t] with
centers c: G = M0 M1^-1, g = M0 (c1 - c0). Rows hold [G - 1 | g]: exactly zero for a camera that stands still.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.models.actions.protocol import ActionEmbedding, PatchProjection, PathConfig, PathShape
from worldmodel.types import FRAMES_PER_LATENT, Extras, Row, Transitions

CHANNELS = 5  # of a transition: where a pixel came from, had the camera only turned (2), and the shift (3)
NEAREST = 0.1  # of a ray's length in the frame before: what turned out of view is cut off there
FARTHEST = 4.0  # picture widths


@dataclass(frozen=True)
class CameraMotionConfig(PathConfig):
    """Needs one camera whose matrices are known, frames to come included."""

    scale: float = 1.0  # 1/m, of the shift

    needs_views: ClassVar[bool] = True
    summary: ClassVar[str] = "where each pixel was in the frame before, for cameras that move"

    def __post_init__(self) -> None:
        check_ranges(self, scale=(0.0, 1e3))

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        """[G - 1 | g] of each transition."""
        return {"camera_motion": Row((3, 4))}

    def read(self, clip: Transitions) -> Extras:
        """See PathConfig."""
        if clip.views is None:
            raise ValueError(
                f"{clip.source}: camera motion needs the camera's matrices at every frame: "
                f"{clip.why_no_views}; set model.actions.camera_motion=null"
            )
        views = clip.views.double()
        turns, shifts = views[:, :, :3], views[:, :, 3:]
        inverse = torch.linalg.inv_ex(turns)[0]
        centers = -inverse @ shifts
        turn = (turns[:-1] - turns[1:]) @ inverse[1:]
        rows = torch.cat([turn, turns[:-1] @ (centers[1:] - centers[:-1])], -1)
        if not rows.isfinite().all():
            raise ValueError(f"{clip.source}: a camera matrix has no inverse: check the intrinsics")
        return {"camera_motion": rows.float()}

    def build(self, shape: PathShape) -> nn.Module:
        """See PathConfig."""
        return CameraMotion(shape, self.scale)


class CameraMotion(nn.Module):
    """Draws the motion for each place and projects it into the embedded patches."""

    rays: Tensor

    def __init__(self, shape: PathShape, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.project = PatchProjection(FRAMES_PER_LATENT * CHANNELS, shape)
        v, u = torch.meshgrid(*((torch.arange(n) + 0.5) / n for n in shape.grid), indexing="ij")
        self.register_buffer("rays", torch.stack([u, v, torch.ones_like(u)]), persistent=False)

    def forward(
        self, actions: Float[Tensor, "b n u"], extras: Extras, missing: Bool[Tensor, "b f"]
    ) -> ActionEmbedding:
        """See PathConfig."""
        maps = self.draw(extras["camera_motion"]).masked_fill(missing[:, :, None, None, None], 0.0)
        return ActionEmbedding(places=self.project(maps))

    def draw(self, motion: Float[Tensor, "b n 3 4"]) -> Float[Tensor, "b f m h w"]:
        """Five channels for each transition of a latent frame; zeros for frame 0."""
        seen = self.rays + torch.einsum("bnij,jhw->bnihw", motion[..., :3], self.rays)
        came_from = (seen[:, :, :2] / seen[:, :, 2:].clamp_min(NEAREST)).clamp(-FARTHEST, FARTHEST)
        shift = (self.scale * motion[..., 3])[..., None, None].expand(-1, -1, -1, *self.rays.shape[1:])
        drawn = torch.cat([came_from - self.rays[:2], shift], 2)
        return F.pad(
            rearrange(drawn, "b (f r) c h w -> b f (r c) h w", r=FRAMES_PER_LATENT), (0,) * 6 + (1, 0)
        )
