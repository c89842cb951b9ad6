"""What a stream knows of the hands: the commands so far, a true frame, and what they have taken since.

A thing that a hand takes after the given frame is in no true picture of that hand. So the follower of a
causal model looks at its own frames: when a gripper has closed and rests, the frame shows what is between the
fingers, and this hand carries that picture until it opens again. What it leaves then is in the frame of that
moment, which is kept as well.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.models.compositor import Composed, KnownFrame, openings, places
from worldmodel.models.model import WorldModel
from worldmodel.models.pose_track import PoseTrack
from worldmodel.types import Extras, map_tensors

CHANGE, REST = 0.25, 0.02  # of the opening: a hand has taken or left something; it does not move
GONE = 0.12  # m from where it did so: the place can be seen again


class HandFollower:
    """Composes frames with the latest true one, by where the hands are."""

    def __init__(
        self,
        model: WorldModel,
        frames: Float[Tensor, "b t 3 H W"],
        past: Extras | None = None,
        robots: Int[Tensor, " b"] | None = None,
    ) -> None:
        """Begins at the last of the given frames.

        Args:
            model: whose arms may be behind their commands, and which may have a compositor.
            frames: what is given.
            past: rows that led to the given frames behind the first.
            robots: numbers of the embodiments whose hands they are; none: not known.
        """
        self.model, self.frame, self.robots = model, frames[:, -1], robots
        self.known: KnownFrame | None = None
        if model.compositor is not None and past and next(iter(past.values())).shape[1]:
            self.known = KnownFrame(self.frame, self._track(past).rows(-1), self.robots)

    def compose(self, decoded: Float[Tensor, "b n 3 H W"], extras: Extras) -> Composed:
        """Frames for those decoded; the same where the hands are not known.

        A stream goes on from the frames as composed. They are sharpened to be shown only: what is sharpened
        again and again would not stay true.
        """
        if self.model.compositor is None or not extras:
            return Composed.still(decoded)
        track = self._track(extras)
        if self.known is None:
            self.known = KnownFrame(self.frame, track.rows(0, 1), self.robots)
        composed = self.model.compose(decoded, track.rows(1), self.known)
        if self.model.config.causal:
            self.known = renewed(self.known, composed.frames[:, -1], track.rows(-2))
        return composed

    def copies(self, count: int) -> "HandFollower":
        """The same with every sample so many times."""
        twin = copy.copy(self)
        for name in ("frame", "robots", "known"):
            setattr(twin, name, map_tensors(getattr(self, name), lambda x: x.repeat_interleave(count, 0)))
        return twin

    def _track(self, extras: Extras) -> PoseTrack:
        assert self.model.compositor is not None, "asked for where there is one"
        return self.model.compositor.track(extras)


def renewed(known: KnownFrame, frame: Float[Tensor, "b 3 H W"], last: PoseTrack) -> KnownFrame:
    """What is known behind a frame to which the second of these rows led.

    A hand whose opening has changed and rests carries the newest frame from now on, and what does not move
    may be taken from it. A hand that is as open as in the first known frame carries that one: it is true.
    When the hand has gone from there, the newest frame shows the place without it, and is kept instead.
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


def robot_numbers(
    model: WorldModel, embodiments: Sequence[str], device: torch.device
) -> Int[Tensor, " b"] | None:
    """Of each sample, in the model's table; none where they are not told."""
    if not embodiments:
        return None
    return torch.tensor([model.normalizer.index(name) for name in embodiments], device=device)
