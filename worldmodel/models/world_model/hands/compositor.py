"""Sharp pictures from what is known exactly: a given frame, and where the hands carry what it shows.

Latents say coarsely what a frame looks like. A given frame shows the same robot and the same objects sharply,
elsewhere. What a hand holds moves with the hand, and its poses are commanded. So each pixel may be taken from

    the decoded frame + a drawn change   where something comes into view
    the given frame                      where nothing moved
    the given frame, carried by a hand   hands, fingers and what they hold (one such picture for each arm)
    a reference, carried by a hand       hands that the given frame does not show (likewise)

and a U-Net says from which, how much of each, and where the carrying has to be mended (the forearm bends).
Mixing moved pixels of given frames goes back to "Unsupervised Learning for Physical Interaction through Video
Prediction" (arXiv 1605.07157) and "Self-Supervised Visual Planning with Temporal Skip Connections"
(arXiv 1710.05268).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from worldmodel.data.pose_tracks import ARMS, HAND_POINTS, carried_places, pixel_rays
from worldmodel.models.world_model.hands.pose_maps import PoseMaps
from worldmodel.models.world_model.hands.references import HandReferences
from worldmodel.models.world_model.refiner import ResidualLevels, zero_convolution
from worldmodel.types import PoseTrack

DEPTH = 3  # levels of halved size
CELL = 2  # pixels per side that the U-Net sees as one place
COMPOSITOR_CELL = CELL * 2**DEPTH  # pixels: the sides of pictures are multiples of it
FARTHEST_MEND = 0.2  # of half the picture: how far a carried pixel may be mended
NUM_CARRIED = 2 * len(ARMS)  # the given frame and a reference, by each hand
NUM_SOURCES = 2 + NUM_CARRIED
HEADS = (3, NUM_SOURCES, 2 * NUM_CARRIED)  # channels: drawn change, shares of the sources, mending


@dataclass(frozen=True)
class KnownFrame:
    """A true frame, where the hands are in it, and whose they are."""

    frame: Float[Tensor, "b 3 H W"]  # in [0, 1]
    hands: PoseTrack  # one row
    robots: Int[Tensor, " b"] | None = None  # numbers of the embodiments; none: without their references

    def copies(self, count: int) -> "KnownFrame":
        """The same with every sample so many times."""

        def repeat(x: Tensor) -> Tensor:
            return x.repeat_interleave(count, 0)

        robots = None if self.robots is None else repeat(self.robots)
        return KnownFrame(repeat(self.frame), self.hands.each(repeat), robots)


class Compositor(nn.Module):
    """Decoded frames, hand poses and a known frame -> frames as sharp as the known one."""

    def __init__(self, size: tuple[int, int], width: int, *, sigma: float = 1.5) -> None:
        """A compositor for one size of picture.

        Args:
            size: height and width, multiples of COMPOSITOR_CELL.
            width: channels at half the size of the picture; each level below has as many more.
            sigma: of the blobs that mark the hands, in pixels.
        """
        super().__init__()
        self.maps = PoseMaps(size, samples=1, sigma=sigma)
        num_maps = len(ARMS) * len(HAND_POINTS)
        inputs = 3 * NUM_SOURCES + 2 * num_maps + 2  # pictures, hands now and then, place
        self.enter = nn.Conv2d(inputs * CELL**2, width, 3, padding=1)
        self.levels = ResidualLevels([width * (level + 1) for level in range(DEPTH + 1)])
        # Equal shares at first. Led by the decoded frame, training stayed with it and learned nothing else.
        self.leave = zero_convolution(nn.Conv2d(width, sum(HEADS) * CELL**2, 3, padding=1))

    def forward(
        self,
        decoded: Float[Tensor, "b n 3 H W"],
        track: PoseTrack,
        known: KnownFrame,
        references: HandReferences | None = None,
    ) -> Float[Tensor, "b n 3 H W"]:
        """Frames in [0, 1] for those decoded, to each of which a row of the track leads."""
        num_frames = decoded.shape[1]
        rows = track.rows(0).each(lambda x: x.flatten(0, 1))
        hands = known.hands.each(lambda x: x.expand(-1, num_frames, *x.shape[2:]).flatten(0, 1))
        given = known.frame[:, None].expand(-1, num_frames, -1, -1, -1).flatten(0, 1)
        carried = [Carried(given, hands) for _ in ARMS]
        if references is not None and known.robots is not None:
            robots = known.robots.repeat_interleave(num_frames)
            carried += [_reference(references, robots, rows, arm, carried[arm]) for arm in range(len(ARMS))]
        else:
            carried += carried
        composed = self.compose(decoded.flatten(0, 1), given, rows, carried)
        return composed.unflatten(0, (-1, num_frames))

    def compose(
        self,
        decoded: Float[Tensor, "n 3 H W"],
        given: Float[Tensor, "n 3 H W"],
        rows: PoseTrack,
        carried: Sequence["Carried"],
    ) -> Float[Tensor, "n 3 H W"]:
        """One picture for each row; `carried` are pictures that the left and right hand carry, in turn."""
        height, width = decoded.shape[-2:]
        places = [
            carried_places(rows, source.hands, (height, width))[:, number % len(ARMS)]
            for number, source in enumerate(carried)
        ]
        pictures = [_sample(source.frame, at) for source, at in zip(carried, places, strict=True)]
        marks = [self.maps.draw_hands(track) for track in (rows, carried[0].hands)]
        place = pixel_rays(height, width)[:, :2].T.to(decoded).unflatten(1, (height, width))
        place = place.expand(len(decoded), -1, -1, -1)
        seen = torch.cat([*(2 * x - 1 for x in (decoded, given, *pictures)), *marks, 2 * place - 1], 1)
        change, shares, mends = self._answers(seen)
        mends = FARTHEST_MEND * rearrange(mends, "n (source uv) y x -> source n y x uv", uv=2)
        mended = [
            _sample(source.frame, at + mend) for source, at, mend in zip(carried, places, mends, strict=True)
        ]
        sources = torch.stack([decoded + change / 2, given, *mended], 1)
        return (shares.softmax(1)[:, :, None] * sources).sum(1)

    def _answers(self, seen: Float[Tensor, "n c H W"]) -> Sequence[Float[Tensor, "n k H W"]]:
        cells = F.pixel_unshuffle(seen, CELL).contiguous(memory_format=torch.channels_last)
        features = self.levels(self.enter(cells.to(self.enter.weight.dtype)))
        return F.pixel_shuffle(self.leave(features), CELL).to(seen.dtype).split(HEADS, 1)


@dataclass(frozen=True)
class Carried:
    """Pictures and the hands in them, a row each."""

    frame: Float[Tensor, "n 3 H W"]
    hands: PoseTrack


def _reference(
    references: HandReferences, robots: Int[Tensor, " n"], rows: PoseTrack, arm: int, instead: Carried
) -> Carried:
    """The most similar reference of an arm; where a robot has none, what is given instead."""
    frame, hands, is_known = references.nearest(robots, rows, arm)

    def chosen(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(is_known.view(-1, *[1] * (one.ndim - 1)), one, other)

    poses = chosen(hands.poses, instead.hands.poses)
    projections = chosen(hands.projections, instead.hands.projections)
    return Carried(chosen(frame.to(instead.frame), instead.frame), PoseTrack(poses, projections))


def _sample(images: Float[Tensor, "n 3 H W"], places: Float[Tensor, "n y x 2"]) -> Float[Tensor, "n 3 y x"]:
    return F.grid_sample(images, places, align_corners=False, padding_mode="border")
