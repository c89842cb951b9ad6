"""The KV cache of a stream: keys and values of the first frame and of the recent ones.

    frame         0   1   2   3   4   5   6   7
    7 attends     x               x   x   x   x      with a window of three; 1 to 3 are dropped

Keys are cached before rotation and rotated at each use, by the distance in time to the frame that attends to
them. The first frame's distance stays constant once frames are dropped: its position is just before the
window. So positions are bounded, and a stream may have any length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class FrameMemory:
    """Unrotated keys and the values of cached frames; immutable, so that forks can share them."""

    numbers: tuple[int, ...] = ()  # frame numbers in the video; 0 comes first and is never dropped
    keys: tuple[Float[Tensor, "b s h e"], ...] = ()  # one per block
    values: tuple[Float[Tensor, "b s h e"], ...] = ()

    def with_frames(self, numbers: Sequence[int], call: "MemoryCall", window: int) -> "FrameMemory":
        """The cache with a call's frames added; it keeps the first frame and the last `window` ones."""
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
    """One network call on new frames with the cache; blocks store the new keys and values here.

    Order of the keys: the first frame once for each new frame, the other cached ones, the new ones. The first
    frame may be at another distance from each new frame, hence one copy for each.
    """

    memory: FrameMemory
    numbers: tuple[int, ...]  # frame numbers of the new frames
    window: int  # number of previous frames that a frame attends to, in addition to the first
    tokens_per_frame: int
    keys: list[Float[Tensor, "b s h e"]] = field(default_factory=list)
    values: list[Float[Tensor, "b s h e"]] = field(default_factory=list)

    @property
    def num_first(self) -> int:
        """Number of copies of the first frame."""
        return len(self.numbers) if self.memory.numbers else 0

    @property
    def _others(self) -> tuple[int, ...]:
        return (*self.memory.numbers[1:], *self.numbers)

    @property
    def num_positions(self) -> int:
        """Number of positions in time that calls of such a stream need."""
        return 2 * self.window + 4

    def positions(self) -> tuple[list[int], list[int]]:
        """Positions of the new frames and of all keys, from 0 on."""
        start = max(0, self.numbers[-1] - self.window - len(self.numbers))
        first = [number - min(number, self.window + 1) for number in self.numbers][: self.num_first]
        return [n - start for n in self.numbers], [n - start for n in (*first, *self._others)]

    def visible(self) -> list[list[bool]]:
        """The keys that each new frame attends to."""
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
        """All unrotated keys and the values of one block; the new ones are stored."""
        self.keys.append(key)
        self.values.append(value)
        if not self.memory.numbers:
            return key, value
        return self._behind(self.memory.keys[layer], key), self._behind(self.memory.values[layer], value)

    def _behind(self, old: Float[Tensor, "b old h e"], new: Float[Tensor, "b new h e"]) -> Tensor:
        width = self.tokens_per_frame
        return torch.cat([*[old[:, :width]] * self.num_first, old[:, width:], new], 1)
