"""What a stream remembers of its frames: keys and values of the first frame and of the recent ones.

    frame         0   1   2   3   4   5   6   7
    7 sees        x               x   x   x   x      with a window of three; 1 to 3 are forgotten

Keys are kept as they are before rotation and rotated at each use, by the distance in time to the frame that
looks at them. Only the first frame comes no nearer or further once frames are forgotten: it stays right
behind the window. So places are bounded, and a stream may be of any length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class FrameMemory:
    """Keys, not rotated, and values of remembered frames; never changed, so that forks can share them."""

    numbers: tuple[int, ...] = ()  # of the frames in the video; 0 comes first and is never forgotten
    keys: tuple[Float[Tensor, "b s h e"], ...] = ()  # one per block
    values: tuple[Float[Tensor, "b s h e"], ...] = ()

    def with_frames(self, numbers: Sequence[int], call: "MemoryCall", window: int) -> "FrameMemory":
        """The memory after these leading frames of a call: the first, and as many as the window has."""
        known = (*self.numbers, *numbers)
        kept = [0, *range(max(1, len(known) - window), len(known))]
        width = call.tokens_per_frame

        def join(old: tuple[Tensor, ...], new: list[Tensor]) -> tuple[Tensor, ...]:
            new = [x[:, : len(numbers) * width] for x in new]
            whole = [torch.cat(pair, 1) for pair in zip(old, new, strict=True)] if old else new
            if len(kept) == len(known):
                return tuple(whole)
            return tuple(torch.cat([x[:, :width], x[:, kept[1] * width :]], 1) for x in whole)

        return FrameMemory(
            tuple(known[i] for i in kept), join(self.keys, call.keys), join(self.values, call.values)
        )


@dataclass(frozen=True)
class MemoryCall:
    """One network call on new frames behind remembered ones; blocks leave the new keys and values here.

    Keys come in this order: the first frame once for each new frame, the other remembered ones, the new ones.
    The first frame may be as far from one new frame as from another, hence once for each.
    """

    memory: FrameMemory
    numbers: tuple[int, ...]  # of the new frames
    window: int  # how many frames before its own a frame sees beside the first
    tokens_per_frame: int
    keys: list[Float[Tensor, "b s h e"]] = field(default_factory=list)
    values: list[Float[Tensor, "b s h e"]] = field(default_factory=list)

    @property
    def num_first(self) -> int:
        """How often the first frame comes in front."""
        return len(self.numbers) if self.memory.numbers else 0

    @property
    def _others(self) -> tuple[int, ...]:
        return (*self.memory.numbers[1:], *self.numbers)

    @property
    def num_places(self) -> int:
        """Places in time that any call of such a stream needs."""
        return 2 * self.window + 4

    def places(self) -> tuple[list[int], list[int]]:
        """Of the new frames and of all keys, from 0 on."""
        start = max(0, self.numbers[-1] - self.window - len(self.numbers))
        first = [number - min(number, self.window + 1) for number in self.numbers][: self.num_first]
        return [n - start for n in self.numbers], [n - start for n in (*first, *self._others)]

    def visible(self) -> list[list[bool]]:
        """Which keys each new frame sees."""
        rows = []
        for i, number in enumerate(self.numbers):
            first = [i == j for j in range(self.num_first)]
            rows.append([*first, *(self._sees(number, other) for other in self._others)])
        return rows

    def _sees(self, number: int, other: int) -> bool:
        return other == 0 or number - self.window <= other <= number

    def read(
        self, layer: int, key: Float[Tensor, "b new h e"], value: Float[Tensor, "b new h e"]
    ) -> tuple[Float[Tensor, "b s h e"], Float[Tensor, "b s h e"]]:
        """All keys, not rotated, and values of one block; the new ones are noted down."""
        self.keys.append(key)
        self.values.append(value)
        if not self.memory.numbers:
            return key, value
        old = (self.memory.keys[layer], self.memory.values[layer])
        joined = (self._behind(x, new) for x, new in zip(old, (key, value), strict=True))
        keys, values = joined
        return keys, values

    def _behind(self, old: Float[Tensor, "b old h e"], new: Float[Tensor, "b new h e"]) -> Tensor:
        width = self.tokens_per_frame
        return torch.cat([*[old[:, :width]] * self.num_first, old[:, width:], new], 1)
