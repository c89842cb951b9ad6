"""Decodes the frames of successive clips of an episode once, and drops those that no later clip needs."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from worldmodel.data.clips import ClipConfig, clip_offsets, clip_pictures
from worldmodel.types import FRAMES_PER_LATENT, Episode

Encode = Callable[[UInt8[Tensor, "b t 3 H W"]], Float[Tensor, "b c f h w"]]


class EpisodeWindow:
    """Clips of an episode, requested in ascending order."""

    def __init__(self, episode: Episode, starts: Sequence[int], config: ClipConfig) -> None:
        self.episode, self.config = episode, config
        self.offsets = clip_offsets(episode.fps, config)
        self._wanted = np.unique(np.asarray(starts)[:, None] + self.offsets)
        self._num_read = 0
        self._frames: dict[int, Tensor] = {}
        self._latents: dict[tuple[int, ...], Tensor] = {}

    def positions(self, start: int) -> Int[np.ndarray, " t"]:
        """The recorded frames of the clip that starts at `start`."""
        return start + self.offsets

    def clips(self, starts: Sequence[int]) -> UInt8[Tensor, "b t 3 H W"]:
        """The frames of these clips; earlier clips can no longer be requested."""
        self._read(starts)
        return torch.stack(
            [torch.stack([self._frames[at] for at in self.positions(start).tolist()]) for start in starts]
        )

    def encode_groups(self, starts: Sequence[int], encode: Encode) -> Float[Tensor, "b c f h w"]:
        """Encode each latent frame of these clips once, if it depends on no frames but its own."""
        self._read(starts)
        groups = [self._groups(start) for start in starts]
        new = list(dict.fromkeys(key for clip in groups for key in clip if key not in self._latents))
        if new:
            # One long video: a placeholder for the first frame, then the groups one after the other.
            video = [self._frames[at] for key in new for at in key]
            encoded = encode(torch.stack([video[0], *video])[None])[0, :, 1:]
            self._latents |= dict(zip(new, encoded.unbind(1), strict=True))
        return torch.stack([torch.stack([self._latents[key] for key in clip], 1) for clip in groups])

    def _groups(self, start: int) -> list[tuple[int, ...]]:
        """The frames of each latent frame; the first frame is repeated four times."""
        first, *rest = self.positions(start).tolist()
        count = FRAMES_PER_LATENT
        return [(first,) * count, *(tuple(rest[at : at + count]) for at in range(0, len(rest), count))]

    def _read(self, starts: Sequence[int]) -> None:
        last = self.positions(max(starts))[-1]
        until = int(np.searchsorted(self._wanted, last, side="right"))
        new = self._wanted[self._num_read : until].tolist()
        if new:
            self._frames |= dict(zip(new, clip_pictures(self.episode, new, self.config), strict=True))
            self._num_read = until
        first = min(starts)
        self._frames = {at: frame for at, frame in self._frames.items() if at >= first}
        self._latents = {key: latent for key, latent in self._latents.items() if key[0] >= first}
