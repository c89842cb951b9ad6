"""Sharp frames from soft ones: what a decoded frame shows is found again in frames that were shown before.

Latents say coarsely what a frame looks like. The given frame shows the same things sharply, elsewhere. So:

1. Matching. Features of the decoded frame are compared with those of every place of a known frame, at up to
   MATCHED places. The expected place under a softmax is a coarse flow, across the whole picture if need be.
2. A U-Net sees the decoded frame, the known frames and these carried by the coarse flows. It mends each flow,
   draws a change of the decoded frame, and says from which source each pixel is taken.
3. Known frames are sampled by the mended flows at their own size, and mixed. Where they are larger than the
   decoded frame, as a camera's pictures are, what stands still is as sharp as they are.

There is no pose, no camera and no fixed size in it. Mixing moved pixels of known frames goes back to
"Unsupervised Learning for Physical Interaction through Video Prediction" (arXiv 1605.07157).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.desk.refiner import ResidualLevels, zero_convolution
from worldmodel.device import in_float32

MATCHED = 300  # places of a picture that are compared with each other, at most
PATCH = 4  # pixels per side of such a place
FEATURES = 32  # channels compared, for each flow
CELL, DEPTH = 2, 2  # pixels per side that the U-Net sees as one place; its levels of halved size
FARTHEST = 0.3  # of half the picture: how far a flow is mended


@dataclass(frozen=True)
class HeadConfig:
    """Size of a picture head."""

    width: int = 40  # channels of the U-Net at half the size of the picture
    num_flows: int = 3  # ways in which each known frame may have moved
    num_sources: int = 1  # known frames: 1 is the given one, more are the latest shown ones beside it

    def __post_init__(self) -> None:
        check_ranges(self, width=(8, 1024), num_flows=(1, 16), num_sources=(1, 8))


@dataclass(frozen=True)
class HeadState:
    """What is known of a video that goes on."""

    sources: Float[Tensor, "b s 3 H W"]  # the last given frame first, then the latest shown ones; in [0, 1]


class PictureHead(nn.Module):
    """Decoded frames and known ones -> frames as they are shown."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.features = nn.Sequential(
            nn.PixelUnshuffle(PATCH),
            *(nn.Conv2d(3 * PATCH**2, 64, 3, padding=1), nn.SiLU()),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.SiLU()),
            nn.Conv2d(64, FEATURES * config.num_flows, 1),
        )
        self.log_sharpness = nn.Parameter(torch.tensor(3.0))
        carried = config.num_sources * config.num_flows
        inputs = 3 * (1 + config.num_sources + carried) + 2 * carried + 2  # pictures, flows, place of a pixel
        self.answers = (3, 2 * carried, 1 + config.num_sources + carried)  # change, mended flows, shares
        self.enter = nn.Conv2d(inputs * CELL**2, config.width, 3, padding=1)
        self.levels = ResidualLevels([config.width * (level + 1) for level in range(DEPTH + 1)])
        self.leave = zero_convolution(nn.Conv2d(config.width, sum(self.answers) * CELL**2, 3, padding=1))

    def open(self, frames: Float[Tensor, "b t 3 H W"]) -> HeadState:
        """The state behind given frames, whose size, not that of the model, is the size of what is shown."""
        return HeadState(self._latest(frames.flip(1)))

    def forward(
        self, decoded: Float[Tensor, "b n 3 h w"], state: HeadState
    ) -> tuple[Float[Tensor, "b n 3 H W"], HeadState]:
        """The frames to show for decoded ones in [0, 1], and the state behind them."""
        count = decoded.shape[1]
        sources = state.sources.repeat_interleave(count, 0)
        shown = self._mix(decoded.flatten(0, 1), sources).unflatten(0, (-1, count))
        known = torch.cat([state.sources[:, :1], shown[:, -1:], state.sources[:, 1:]], 1)
        return shown, HeadState(self._latest(known))

    def _latest(self, frames: Float[Tensor, "b t 3 H W"]) -> Float[Tensor, "b s 3 H W"]:
        """As many as there are sources; the first again where there are fewer."""
        missing = max(0, self.config.num_sources - frames.shape[1])
        first = frames[:, :1].expand(-1, missing, -1, -1, -1)
        return torch.cat([frames, first], 1)[:, : self.config.num_sources]

    def _mix(
        self, decoded: Float[Tensor, "m 3 h w"], sources: Float[Tensor, "m s 3 H W"]
    ) -> Float[Tensor, "m 3 H W"]:
        size, full = decoded.shape[-2:], sources.shape[-2:]
        known = resized(sources.flatten(0, 1), size).unflatten(0, sources.shape[:2])
        flows = self._match(decoded, known)
        change, mended, shares = (part.float() for part in self._ask(decoded, known, flows))
        flows = resized(flows + FARTHEST * mended, full)
        drawn = resized(decoded + change, full)
        pictures = torch.cat([drawn[:, None], sources, self._carry(sources, flows, "bicubic")], 1)
        mixed = (resized(shares, full).softmax(1)[:, :, None] * pictures).sum(1)
        return mixed if self.training else mixed.clamp(0, 1)

    @in_float32
    def _match(
        self, decoded: Float[Tensor, "m 3 h w"], known: Float[Tensor, "m s 3 h w"]
    ) -> Float[Tensor, "m k h w"]:
        """For each flow of each known frame: where every pixel of the decoded frame was in it (u, v)."""
        size = matching_size(*decoded.shape[-2:])
        wanted = self._compared(resized(decoded, size)).repeat_interleave(known.shape[1], 0)
        offered = self._compared(resized(known.flatten(0, 1), size))
        alike = torch.einsum("mkcp,mkcq->mkpq", wanted, offered) * self.log_sharpness.exp()
        rows, columns = size[0] // PATCH, size[1] // PATCH
        places = pixel_places(rows, columns, decoded)
        flows = alike.softmax(-1) @ places.flatten(1).T - places.flatten(1).T
        flows = rearrange(flows, "(m s) k (y x) uv -> m (s k uv) y x", y=rows, s=known.shape[1])
        return resized(flows, decoded.shape[-2:])

    def _compared(self, images: Float[Tensor, "m 3 h w"]) -> Float[Tensor, "m k c p"]:
        """Features of unit length at every place."""
        features = rearrange(self.features(2 * images - 1), "m (k c) y x -> m k c (y x)", c=FEATURES)
        return F.normalize(features, dim=2)

    def _ask(
        self,
        decoded: Float[Tensor, "m 3 h w"],
        known: Float[Tensor, "m s 3 h w"],
        flows: Float[Tensor, "m k h w"],
    ) -> tuple[Float[Tensor, "m 3 h w"], Float[Tensor, "m k h w"], Float[Tensor, "m j h w"]]:
        """The U-Net: change of the decoded frame, mended flows, shares of the sources before softmax."""
        height, width = decoded.shape[-2:]
        carried = self._carry(known, flows, "bilinear")
        place = pixel_places(height, width, decoded).expand(len(decoded), -1, -1, -1)
        pictures = torch.cat([decoded[:, None], known, carried], 1).flatten(1, 2)
        seen = torch.cat([2 * pictures - 1, flows, place], 1)
        step = CELL * 2**DEPTH
        seen = F.pad(seen, (0, -width % step, 0, -height % step), mode="replicate")
        cells = F.pixel_unshuffle(seen, CELL).contiguous(memory_format=torch.channels_last)
        answer = F.pixel_shuffle(self.leave(self.levels(self.enter(cells))), CELL)
        change, mended, shares = answer[..., :height, :width].split(self.answers, 1)
        return change, mended, shares

    def _carry(
        self, sources: Float[Tensor, "m s 3 y x"], flows: Float[Tensor, "m k y x"], mode: str
    ) -> Float[Tensor, "m j 3 y x"]:
        """Every source as each of its flows would have it."""
        copies = repeat(sources, "m s c y x -> (m s k) c y x", k=self.config.num_flows)
        moved = sample_at(copies, rearrange(flows, "m (j uv) y x -> (m j) uv y x", uv=2), mode)
        return moved.unflatten(0, (len(sources), -1))


def matching_size(height: int, width: int) -> tuple[int, int]:
    """Image size for matching: the given one, or smaller if it has too many patches; whole patches only."""
    shrink = min(1.0, (MATCHED * PATCH**2 / (height * width)) ** 0.5)
    rows, columns = (max(1, int(side * shrink) // PATCH) for side in (height, width))
    return rows * PATCH, columns * PATCH


def pixel_places(height: int, width: int, like: Tensor) -> Float[Tensor, "2 y x"]:
    """Centers of the pixels, u to the right and v down, from -1 to 1 across the picture."""
    u, v = ((2 * torch.arange(n, device=like.device) + 1) / n - 1 for n in (width, height))
    return torch.stack([u.expand(height, -1), v[:, None].expand(-1, width)]).to(like)


def sample_at(
    images: Float[Tensor, "m c y x"], flow: Float[Tensor, "m 2 y x"], mode: str = "bicubic"
) -> Float[Tensor, "m c y x"]:
    """Every pixel from where the flow points: an offset in halves of the picture."""
    # Cubic where it is shown: linear sampling between pixels is a blur.
    at = (pixel_places(images.shape[-2], images.shape[-1], flow) + flow).movedim(1, -1)
    return F.grid_sample(images, at, mode=mode, padding_mode="border", align_corners=False)


def resized(images: Float[Tensor, "m c _ _"], size: Sequence[int]) -> Float[Tensor, "m c y x"]:
    """Another size, smoothed where it is smaller; unchanged where it is the same."""
    if images.shape[-2:] == torch.Size(size):
        return images
    return F.interpolate(images, size=tuple(size), mode="bilinear", antialias=True, align_corners=False)
