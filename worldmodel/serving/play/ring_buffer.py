"""A ring buffer with the last minutes of a drive, in preallocated arrays, so that memory stays constant."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, UInt8

if TYPE_CHECKING:
    from robotwin_adapters.tabletop.simulate import Frame


@dataclass(frozen=True)
class Moment:
    """A frame of the recording."""

    dream: UInt8[np.ndarray, "H W 3"]
    beside: UInt8[np.ndarray, "H W 3"] | None  # from the simulator or recording
    command: Float[np.ndarray, " a"]  # that led here; for the first frame, the last given one
    robot: "Frame | None" = None  # joints and poses of the simulator


class Tape:
    """A ring buffer of moments; the oldest ones are overwritten."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pictures = np.empty((0,), np.uint8)
        self._rest: deque[tuple[bool, np.ndarray, Frame | None]] = deque(maxlen=size)
        self._next = 0  # slot of the next moment

    def append(self, moment: Moment) -> None:
        """Add a moment; its pictures are copied."""
        shape = (self.size, 2, *moment.dream.shape)
        if self._pictures.shape != shape:
            self._pictures = np.zeros(shape, np.uint8)
        slot = self._pictures[self._next]
        slot[0] = moment.dream
        if moment.beside is not None:
            slot[1] = moment.beside
        self._rest.append((moment.beside is not None, moment.command, moment.robot))
        self._next = (self._next + 1) % self.size

    def pop(self) -> None:
        """Remove the newest moment."""
        self._rest.pop()
        self._next = (self._next - 1) % self.size

    def clear(self) -> None:
        """Remove all moments."""
        self._rest.clear()

    def __len__(self) -> int:
        return len(self._rest)

    def __getitem__(self, index: int) -> Moment:
        position = range(len(self))[index]
        has_beside, command, robot = self._rest[position]
        dream, beside = self._pictures[(self._next - len(self) + position) % self.size]
        return Moment(dream, beside if has_beside else None, command, robot)

    def __iter__(self) -> Iterator[Moment]:
        return (self[index] for index in range(len(self)))
