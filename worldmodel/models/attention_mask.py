"""Which latent frames of a causal backbone see which, and where they stand in time.

frame        0   1   2   3   4
4 sees       x   x   x   x   x
2 sees       x   x   x
4 sees       x           x   x      after a jump over frames 1 and 2: frame 0 stands where 2 was
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from worldmodel.models.kv_cache import MemoryCall


@dataclass(frozen=True)
class AttentionView:
    """What the latent frames of one network call may see of each other."""

    visible: Bool[Tensor, "b f keys"]  # whether a frame sees another; b may be 1: the same for all samples
    positions: Int[Tensor, "b f"]  # of each frame in time, for the rotary tables
    stream: "StreamView | None" = None  # of the frames of a stream: what they know of it

    def to(self, device: torch.device) -> "AttentionView":
        """Move to a device."""
        return AttentionView(self.visible.to(device), self.positions.to(device), self.stream)

    def __getitem__(self, which: slice | list[int]) -> "AttentionView":
        """The view of some samples of a clip."""
        visible, positions = (
            part if len(part) == 1 else part[which] for part in (self.visible, self.positions)
        )
        return AttentionView(visible, positions, self.stream)

    @property
    def num_positions(self) -> int:
        """Positions in time that the rotary tables must have."""
        return self.positions.shape[1] if self.stream is None else self.stream.call.num_positions

    @property
    def starts(self) -> bool:
        """Whether the first frame of the video is the first of this call."""
        return self.stream is None or self.stream.call.numbers[0] == 0


@dataclass(frozen=True)
class StreamView:
    """Cached state of a stream that a network call on its next frames uses."""

    call: MemoryCall
    key_positions: Int[Tensor, "1 keys"]
    first: Float[Tensor, "b c 1 h w"]  # latents of the first frame of the video
    before: Float[Tensor, "b c 1 h w"]  # latents of the frame before the latest
    maps_before: Float[Tensor, "b 1 m h w"] | None  # its pose maps, where poses are drawn


class RotaryTables(NamedTuple):
    """What Wan hands to self-attention: rotary tables of every token, and what each token may see."""

    cosines: Float[Tensor, "b s 1 e"]
    sines: Float[Tensor, "b s 1 e"]
    mask: Bool[Tensor, "b 1 s keys"] | None = None
    keys: "KeyTables | None" = None  # in a stream, whose keys are more than its queries


class KeyTables(NamedTuple):
    """Rotary tables of remembered and new keys."""

    cosines: Float[Tensor, "b keys 1 e"]
    sines: Float[Tensor, "b keys 1 e"]
    call: MemoryCall


def causal_view(num_frames: int, device: torch.device) -> AttentionView:
    """Every frame sees itself and those before."""
    frames = torch.arange(num_frames, device=device)
    return AttentionView((frames <= frames[:, None])[None], frames[None])


def jump_view(num_frames: int, jump: Int[Tensor, " b"]) -> AttentionView:
    """As `causal_view`, but from frame jump + 1 on the first frame is followed by frame jump + 1.

    In a long video the frames between the first and the recent ones are forgotten: the first stands where
    the last forgotten one was, and is older than that.
    """
    plain = causal_view(num_frames, jump.device)
    frames, jump = plain.positions, jump[:, None]
    is_forgotten = (frames >= 1) & (frames <= jump)
    visible = plain.visible & ~((frames > jump)[:, :, None] & is_forgotten[:, None, :])
    return AttentionView(visible, torch.where(frames == 0, jump, frames))


def stream_view(
    call: MemoryCall,
    first: Float[Tensor, "b c 1 h w"],
    before: Float[Tensor, "b c 1 h w"],
    maps_before: Float[Tensor, "b 1 m h w"] | None = None,
) -> AttentionView:
    """The attention mask and positions of new frames, which attend to cached frames and each other."""
    positions, key_positions = (torch.tensor([x], device=first.device) for x in call.positions())
    visible = torch.tensor([call.visible()], device=first.device)
    return AttentionView(visible, positions, StreamView(call, key_positions, first, before, maps_before))


def position_tables(tables: RotaryTables, view: AttentionView, tokens_per_frame: int) -> RotaryTables:
    """The tables of frames 0, 1, ... put at the positions of a view, with its mask token by token."""
    cosines, sines = _at_positions(tables, view.positions, tokens_per_frame)
    mask = view.visible.repeat_interleave(tokens_per_frame, 1).repeat_interleave(tokens_per_frame, 2)
    if view.stream is None:
        return RotaryTables(cosines, sines, mask[:, None])
    keys = KeyTables(*_at_positions(tables, view.stream.key_positions, tokens_per_frame), view.stream.call)
    # One new frame sees all that a stream remembers.
    return RotaryTables(cosines, sines, mask[:, None] if view.visible.shape[1] > 1 else None, keys)


def _at_positions(
    tables: RotaryTables, positions: Int[Tensor, "b f"], tokens_per_frame: int
) -> tuple[Float[Tensor, "b s 1 e"], Float[Tensor, "b s 1 e"]]:
    by_frame = (x[0].unflatten(0, (-1, tokens_per_frame)) for x in tables[:2])
    cosines, sines = (x[positions].flatten(1, 2) for x in by_frame)
    return cosines, sines
