"""Sharp pictures from what is known exactly: a given frame, and where the hands carry what it shows.

Latents say coarsely what a frame looks like. A given frame shows the same robot and the same objects sharply,
elsewhere. What a hand holds moves with the hand, and its poses are commanded. So each pixel may be taken from

    the decoded frame + a drawn change   where something comes into view
    the given frame                      where nothing moved
    the latest kept frame                where a hand has left something since
    the given frame, carried by a hand   hands, fingers and what they hold (one such picture for each arm;
                                         a later frame where a hand has taken something since)
    a reference, carried by a hand       hands that the given frame does not show (likewise)

and a U-Net says from which, how much of each, and where the carrying has to be mended (the forearm bends).
Mixing moved pixels of given frames goes back to "Unsupervised Learning for Physical Interaction through Video
Prediction" (arXiv 1605.07157) and "Self-Supervised Visual Planning with Temporal Skip Connections"
(arXiv 1710.05268).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from worldmodel.desk.refiner import ResidualLevels, zero_convolution
from worldmodel.device import in_float32
from worldmodel.models.actions.pose_maps import ARMS, HAND_POINTS, HandDrawing, hand_points
from worldmodel.models.hand_references import HandReferences
from worldmodel.models.pose_track import PoseTrack, carried_places, pixel_rays, track_of
from worldmodel.types import Extras, map_tensors

DEPTH = 3  # levels of halved size
CELL = 2  # pixels per side that the U-Net sees as one place
COMPOSITOR_CELL = CELL * 2**DEPTH  # pixels: the sides of pictures are multiples of it
FARTHEST_MEND = 0.2  # of half the picture: how far a carried pixel may be mended
NUM_CARRIED = 2 * len(ARMS)  # the given frame and a reference, by each hand
NUM_SOURCES = 3 + NUM_CARRIED
HEADS = (3, NUM_SOURCES, 2 * NUM_CARRIED)  # channels: drawn change, shares of the sources, mending
CHANGE, REST = 0.25, 0.02  # of the opening: a hand has taken or left something; it does not move
GONE = 0.12  # m from where it did so: the place can be seen again


@dataclass(frozen=True)
class KnownFrame:
    """A given frame with the poses of its hands and its robots, and what was kept of later frames."""

    frame: Float[Tensor, "b 3 H W"]  # in [0, 1]
    hands: PoseTrack  # one row
    robots: Int[Tensor, " b"] | None = None  # numbers of the embodiments; none: without their references
    # The latest frame in which a hand took or left something, the picture that each hand carries, and a row
    # of hands for each of these; none: the frame above.
    latest: Float[Tensor, "b 3 H W"] | None = None
    taken: Float[Tensor, "b arm 3 H W"] | None = None
    taken_hands: PoseTrack | None = None
    places: Float[Tensor, "b arm 3"] | None = None  # m: where each hand did so and still is; else infinite

    def carried(self, arm: int) -> "Carried":
        """The picture that a hand carries, one row for every sample."""
        if self.taken is None or self.taken_hands is None:
            return Carried(self.frame, map_tensors(self.hands, lambda x: x[:, 0]))
        return Carried(self.taken[:, arm], map_tensors(self.taken_hands, lambda x: x[:, arm]))

    def openings(self) -> Float[Tensor, "b arm"]:
        """How far each hand is open in the picture that it carries."""
        rows = [openings(self.carried(arm).hands)[:, arm] for arm in range(len(ARMS))]
        return torch.stack(rows, 1)

    def first(self) -> "KnownFrame":
        """The given frame, without what was kept of later frames."""
        return KnownFrame(self.frame, self.hands, self.robots)

    def keeping(self, frame: Float[Tensor, "b 3 H W"], is_kept: Bool[Tensor, " b"]) -> "KnownFrame":
        """The same with another latest frame in some samples."""
        old = self.frame if self.latest is None else self.latest
        return replace(self, latest=torch.where(is_kept[:, None, None, None], frame, old))

    def taking(self, other: "KnownFrame", is_other: Bool[Tensor, "b arm"]) -> "KnownFrame":
        """The same, but some hands carry the picture that they carry in another."""

        def choose(part: Callable[[Carried], Tensor]) -> Tensor:
            own, new = (
                torch.stack([part(known.carried(arm)) for arm in range(len(ARMS))], 1)
                for known in (self, other)
            )
            return torch.where(is_other.view(*is_other.shape, *[1] * (own.ndim - 2)), new, own)

        hands = PoseTrack(choose(lambda x: x.hands.poses), choose(lambda x: x.hands.projections))
        return replace(self, taken=choose(lambda x: x.frame), taken_hands=hands)


class Compositor(nn.Module):
    """Decoded frames, hand poses and a known frame -> frames as sharp as the known one."""

    def __init__(
        self, size: tuple[int, int], width: int, *, sigma: float = 1.5, command_lag: float = 0.0
    ) -> None:
        """A compositor for one size of picture.

        Args:
            size: height and width, multiples of COMPOSITOR_CELL.
            width: channels at half the size of the picture; each level below has as many more.
            sigma: of the blobs that mark the hands, in pixels.
            command_lag: fraction of the last commanded motion not yet executed at frame time.
        """
        super().__init__()
        self.maps = HandDrawing(size, samples=1, sigma=sigma)
        self.command_lag = command_lag
        num_maps = len(ARMS) * len(HAND_POINTS)
        inputs = 3 * NUM_SOURCES + 2 * num_maps + 2  # pictures, hands now and then, place
        self.enter = nn.Conv2d(inputs * CELL**2, width, 3, padding=1)
        self.levels = ResidualLevels([width * (level + 1) for level in range(DEPTH + 1)])
        # Equal shares at first. Led by the decoded frame, training stayed with it and learned nothing else.
        self.leave = zero_convolution(nn.Conv2d(width, sum(HEADS) * CELL**2, 3, padding=1))

    @in_float32
    def forward(
        self,
        decoded: Float[Tensor, "b n 3 H W"],
        track: PoseTrack,
        known: KnownFrame,
        references: HandReferences | None = None,
    ) -> "Composed":
        """Frames in [0, 1] for those decoded, to each of which a row of the track leads."""
        num_frames = decoded.shape[1]
        rows = map_tensors(track, lambda x: x.flatten(0, 1))

        def repeated(part: Carried) -> Carried:
            copies: Carried = map_tensors(part, lambda x: x.repeat_interleave(num_frames, 0))
            return copies

        given = repeated(known.first().carried(0))
        latest = known.frame if known.latest is None else known.latest
        carried = [repeated(known.carried(arm)) for arm in range(len(ARMS))]
        if references is not None and known.robots is not None:
            robots = known.robots.repeat_interleave(num_frames)
            carried += [_reference(references, robots, rows, arm, carried[arm]) for arm in range(len(ARMS))]
        else:
            carried += carried
        still = [given.frame, latest.repeat_interleave(num_frames, 0)]
        composed = self.compose(decoded.flatten(0, 1), still, given.hands, rows, carried)
        frames, moved = (x.unflatten(0, (-1, num_frames)) for x in (composed.frames, composed.moved))
        return Composed(frames, moved)

    def track(self, extras: Extras) -> PoseTrack:
        """Hand poses in the frame before these rows and in the frame after each of them."""
        return track_of(extras, self.command_lag)

    def compose(
        self,
        decoded: Float[Tensor, "n 3 H W"],
        still: Sequence[Float[Tensor, "n 3 H W"]],
        given_hands: PoseTrack,
        rows: PoseTrack,
        carried: Sequence["Carried"],
    ) -> "Composed":
        """One picture for each row.

        `still` are pictures of what does not move, given the hands in the first of them; `carried` are those
        that the left and right hand carry, in turn.
        """
        height, width = decoded.shape[-2:]
        places = [
            carried_places(rows, source.hands, (height, width))[:, number % len(ARMS)]
            for number, source in enumerate(carried)
        ]
        pictures = [_sample(source.frame, at) for source, at in zip(carried, places, strict=True)]
        points = [hand_points(track.poses, track.projections) for track in (rows, given_hands)]
        marks = [self.maps.draw(one[None])[0] for one in points]
        place = pixel_rays(height, width, decoded)[:, :2].T.unflatten(1, (height, width))
        place = place.expand(len(decoded), -1, -1, -1)
        seen = torch.cat([*(2 * x - 1 for x in (decoded, *still, *pictures)), *marks, 2 * place - 1], 1)
        change, shares, mends = self._answers(seen)
        mends = FARTHEST_MEND * rearrange(mends, "n (source uv) y x -> source n y x uv", uv=2)
        mended = [
            _sample(source.frame, at + mend) for source, at, mend in zip(carried, places, mends, strict=True)
        ]
        sources = torch.stack([decoded + change / 2, *still, *mended], 1)
        mix = shares.softmax(1)[:, :, None]
        return Composed((mix * sources).sum(1), 1 - mix[:, 1 : 1 + len(still)].sum(1))

    def _answers(self, seen: Float[Tensor, "n c H W"]) -> Sequence[Float[Tensor, "n k H W"]]:
        cells = F.pixel_unshuffle(seen, CELL).contiguous(memory_format=torch.channels_last)
        features = self.levels(self.enter(cells.to(self.enter.weight.dtype)))
        return F.pixel_shuffle(self.leave(features), CELL).to(seen.dtype).split(HEADS, 1)


@dataclass(frozen=True)
class Composed:
    """Frames, and the share of each pixel that does not come from a still picture."""

    frames: Float[Tensor, "*n 3 H W"]
    moved: Float[Tensor, "*n 1 H W"]

    @classmethod
    def still(cls, frames: Float[Tensor, "*n 3 H W"]) -> "Composed":
        """Unchanged frames, none of which can be sharpened."""
        return cls(frames, torch.zeros_like(frames[..., :1, :, :]))

    def sharpened(self, amount: float) -> Float[Tensor, "*n 3 H W"]:
        """The frames with more of the fine detail of what moved."""
        if not amount:
            return self.frames
        images = self.frames.flatten(0, -4)
        line = images.new_tensor([0.25, 0.5, 0.25])
        kernel = (line[:, None] * line).expand(3, 1, 3, 3)
        soft = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), kernel, groups=3)
        return (self.frames + amount * self.moved * (images - soft).view_as(self.frames)).clamp(0, 1)


@dataclass(frozen=True)
class Carried:
    """Pictures and the hands in them, a row each."""

    frame: Float[Tensor, "n 3 H W"]
    hands: PoseTrack


def openings(rows: PoseTrack) -> Float[Tensor, "*b arm"]:
    """How far each hand is open: 0 closed, 1 open."""
    return rows.poses.unflatten(-1, (len(ARMS), -1))[..., -1]


def places(rows: PoseTrack) -> Float[Tensor, "*b arm 3"]:
    """Where each wrist is (m, world)."""
    return rows.poses.unflatten(-1, (len(ARMS), -1))[..., :3]


def renewed(known: KnownFrame, frame: Float[Tensor, "b 3 H W"], last: PoseTrack) -> KnownFrame:
    """Choose for each hand the known frame to take it from, after a new frame; row 1 of `last` has its poses.

    That is the new one where a gripper has opened or closed and rests, else the first if it is as open there.
    """
    (before, now), place = openings(last).unbind(1), places(last)[:, 1]
    first, newest = known.first(), KnownFrame(frame, last.rows(1))
    is_new = ((now - known.openings()).abs() > CHANGE) & ((now - before).abs() < REST)
    old = torch.full_like(place, torch.inf) if known.places is None else known.places
    is_gone = old.isfinite().all(-1) & ((place - old).norm(dim=-1) > GONE) & ~is_new
    if not (is_new | is_gone).any():
        return known
    is_first = (now - first.openings()).abs() <= CHANGE
    known = known.taking(first, is_new & is_first).taking(newest, is_new & ~is_first)
    old = torch.where(is_new[..., None], place, old.masked_fill(is_gone[..., None], torch.inf))
    return replace(known.keeping(frame, (is_new | is_gone).any(1)), places=old)


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
    # Cubic, since linear sampling between pixels is a blur: it kept 0.48 of the edges where this keeps 0.74.
    return F.grid_sample(images, places, mode="bicubic", align_corners=False, padding_mode="border")
