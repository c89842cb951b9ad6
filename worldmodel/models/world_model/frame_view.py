"""Which latent frames of a causal backbone see which, and where they stand in time.

    frame        0   1   2   3   4
    4 sees       x   x   x   x   x
    2 sees       x   x   x
    4 sees       x           x   x      after a jump over frames 1 and 2: frame 0 stands where 2 was

Wan hands self-attention nothing but its rotary tables, and the patch embedding nothing but the latents. So
the view of a network call reaches both through a context variable, which threads do not share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class FrameView:
    """What the latent frames of one network call may see of each other."""

    visible: Bool[Tensor, "b f keys"]  # whether a frame sees another; b may be 1: the same for all samples
    places: Int[Tensor, "b f"]  # of each frame in time, for the rotary tables

    def to(self, device: torch.device) -> "FrameView":
        """The same on another device."""
        return FrameView(self.visible.to(device), self.places.to(device))


class RotaryTables(NamedTuple):
    """What Wan hands to self-attention: rotary tables of every token, and what each token may see."""

    cosines: Float[Tensor, "b s 1 e"]
    sines: Float[Tensor, "b s 1 e"]
    mask: Bool[Tensor, "b 1 s keys"] | None = None


_VIEW: ContextVar[FrameView | None] = ContextVar("frame_view", default=None)


@contextmanager
def using_view(view: FrameView | None) -> Iterator[None]:
    """The view of all network calls inside this block."""
    token = _VIEW.set(view)
    try:
        yield
    finally:
        _VIEW.reset(token)


def current_view() -> FrameView | None:
    """The view of the network call that is running; none: every frame sees all."""
    return _VIEW.get()


def causal_view(num_frames: int, device: torch.device) -> FrameView:
    """Every frame sees itself and those before."""
    frames = torch.arange(num_frames, device=device)
    return FrameView((frames <= frames[:, None])[None], frames[None])


def jump_view(num_frames: int, jump: Int[Tensor, " b"]) -> FrameView:
    """As `causal_view`, but from frame jump + 1 on the first frame is followed by frame jump + 1.

    In a long video the frames between the first and the recent ones are forgotten: the first stands where
    the last forgotten one was, and is older than that.
    """
    plain = causal_view(num_frames, jump.device)
    frames, jump = plain.places, jump[:, None]
    is_forgotten = (frames >= 1) & (frames <= jump)
    visible = plain.visible & ~((frames > jump)[:, :, None] & is_forgotten[:, None, :])
    return FrameView(visible, torch.where(frames == 0, jump, frames))


def place_tables(tables: RotaryTables, view: FrameView, tokens_per_frame: int) -> RotaryTables:
    """The tables of frames 0, 1, ... put at the places of a view, with its mask token by token."""
    by_frame = (x[0].unflatten(0, (-1, tokens_per_frame)) for x in tables[:2])
    cosines, sines = (x[view.places].flatten(1, 2) for x in by_frame)
    mask = view.visible.repeat_interleave(tokens_per_frame, 1).repeat_interleave(tokens_per_frame, 2)
    return RotaryTables(cosines, sines, mask[:, None])
