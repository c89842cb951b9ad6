"""Many small `RandomState.randint` calls at once, with exactly the same numbers.

The legacy generator computes randint(size) by masking raw 32-bit words and rejecting those that are too
large. Which word starts the next call depends on the rejections before it, but for a given size the accepted
words can be listed once; after that a whole call is two table lookups.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Num
from numpy.lib.stride_tricks import sliding_window_view

VOTE_CHUNK = 512  # votes handled at once: their random words and codes stay in cache


def grouped_draws(
    sizes: tuple[int, ...], num_votes: int, group: int, rng: np.random.RandomState, repeats: int = 1
) -> Iterator[tuple[Int[np.ndarray, " votes"], list[Num[np.ndarray, "votes group"]]]]:
    """Per vote `randint(len(sizes))`, then `randint(size, size=group)` for each size, `repeats` times over.

    Words are drawn from `rng` in advance, so its state afterwards differs from that of single calls.
    """
    calls = sizes * repeats
    # A word is accepted with chance size / (mask + 1) > 1/2: the words per number have variance below 2.
    expected = 2 + sum(group * (_mask(size) + 1) / size for size in calls)
    variance = 2 * (1 + group * len(calls))
    # Only the low bits count; in one byte a word they are compared and gathered several times faster.
    words = np.empty(0, dtype=np.uint8 if max(len(sizes), *sizes) <= 256 else np.uint32)
    for start in range(0, num_votes, VOTE_CHUNK):
        count = min(VOTE_CHUNK, num_votes - start)
        enough = int(expected * count + 20 * (variance * count) ** 0.5)  # twenty standard deviations
        missing = max(0, enough - len(words))
        fresh = rng.randint(0, 2**32, size=missing, dtype=np.uint32).astype(words.dtype)
        words = np.concatenate([words, fresh])
        streams = {size: _stream(words, size) for size in set(calls)}
        chain = [streams[size] for size in calls]
        factor, places, position = _locate(words, len(sizes), chain, count, group)
        yield factor, [stream.read(place, group) for stream, place in zip(chain, places, strict=True)]
        words = words[position:]


@dataclass(frozen=True)
class Stream:
    """The numbers of one size: words masked, and which of them are accepted."""

    size: int
    values: Num[np.ndarray, " w"]
    position: Int[np.ndarray, " accepted"] | None  # None for powers of two, which reject nothing
    rank: Int[np.ndarray, " w+1"] | None  # words accepted before each word

    def read(self, places: Int[np.ndarray, " votes"], count: int) -> Num[np.ndarray, "votes {count}"]:
        """The numbers of calls that start at these accepted words."""
        if self.position is None:
            return sliding_window_view(self.values, count)[places]
        return self.values.take(sliding_window_view(self.position, count)[places])


def _stream(words: Num[np.ndarray, " w"], size: int) -> Stream:
    values = words & words.dtype.type(_mask(size))
    if size & (size - 1) == 0:
        return Stream(size, values, None, None)
    is_accepted = values < size
    rank = np.empty(len(words) + 1, dtype=np.int32)
    rank[0] = 0
    np.cumsum(is_accepted, dtype=np.int32, out=rank[1:])
    return Stream(size, values, np.flatnonzero(is_accepted), rank)


def _locate(
    words: Num[np.ndarray, " w"], num_factors: int, chain: list[Stream], count: int, group: int
) -> tuple[Int[np.ndarray, " votes"], Int[np.ndarray, "calls votes"], int]:
    """The factor of each vote, the accepted word at which each call starts, and the number of words used."""
    # Memory views are twice as fast to index as arrays. randint(1) consumes no words.
    steps = [
        (None, None, group * (stream.size > 1))
        if stream.rank is None or stream.position is None
        else (stream.rank.data, stream.position.data, group - 1)
        for stream in chain
    ]
    word, mask, position = words.data, _mask(num_factors), 0
    factor, places = [], []
    for _ in range(count):
        while num_factors > 1 and word[position] & mask >= num_factors:
            position += 1
        factor.append(word[position] & mask)
        position += num_factors > 1
        for rank, accepted, length in steps:
            if rank is None or accepted is None:
                places.append(position)
                position += length
            else:
                first = rank[position]
                places.append(first)
                position = accepted[first + length] + 1
    return np.array(factor), np.array(places).reshape(count, len(chain)).T, position


def _mask(size: int) -> int:
    return (1 << (size - 1).bit_length()) - 1
