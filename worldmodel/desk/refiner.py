"""Refines latents of a small backbone: seams between its patches, and detail below their size."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn


class LatentRefiner(nn.Module):
    """A U-Net over each latent frame except the first, which also gets the previous and the first frame.

    A token of a small backbone represents a large patch and is decoded independently of its neighbors. With
    `map_channels` the refiner also gets the hand poses. An untrained refiner changes nothing.
    """

    def __init__(self, latent_channels: int, width: int, *, map_channels: int = 0) -> None:
        """Build a refiner.

        Args:
            latent_channels: of the autoencoder.
            width: channels at the size of the latents.
            map_channels: of the pose maps of a latent frame; 0: there are none.
        """
        super().__init__()
        self.poses: nn.Conv2d | None = None
        self.enter = nn.Conv2d(3 * latent_channels, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.Conv2d(2 * width, 4 * width, 1)
        self.leave = zero_convolution(nn.Conv2d(width, latent_channels, 3, padding=1))
        if map_channels:
            self.poses = zero_convolution(nn.Conv2d(2 * map_channels, width, 1, bias=False))

    def forward(
        self,
        estimate: Float[Tensor, "b c f h w"],
        noisy: Float[Tensor, "b c f h w"],
        sigma: Float[Tensor, "b f"],
        pose_maps: Float[Tensor, "b f m h w"] | None = None,
    ) -> Float[Tensor, "b c f h w"]:
        """A better estimate of the clean latents; for frames of sigma 0 the given latents are the input."""
        seen = torch.where(sigma[:, None, :, None, None] == 0, noisy, estimate)
        maps, maps_before = (None, None) if pose_maps is None else (pose_maps[:, 1:], pose_maps[:, :-1])
        change = self.change(seen[:, :, 1:], seen[:, :, :-1], seen[:, :, :1], maps, maps_before)
        return torch.cat([estimate[:, :, :1], estimate[:, :, 1:] + change], 2)

    def change(
        self,
        frames: Float[Tensor, "b c f h w"],
        before: Float[Tensor, "b c f h w"],
        first: Float[Tensor, "b c 1 h w"],
        maps: Float[Tensor, "b f m h w"] | None = None,
        maps_before: Float[Tensor, "b f m h w"] | None = None,
    ) -> Float[Tensor, "b c f h w"]:
        """What to add to estimated latent frames, from those before them and the first one of the video.

        `maps` are drawn hand poses of the same frames, `maps_before` of those before, where a model has them.
        """
        stacked = torch.cat([frames, before, first.expand_as(before)], 1)
        entered = self.enter(_as_images(stacked, "b c f h w -> (b f) h w c", self.enter.weight.dtype))
        drawn = self._one_level(entered, maps, maps_before)
        return rearrange(self.leave(drawn), "(b f) c h w -> b c f h w", b=len(frames)).to(frames.dtype)

    def _one_level(
        self,
        entered: Float[Tensor, "n d h w"],
        maps: Float[Tensor, "b f m h w"] | None,
        before: Float[Tensor, "b f m h w"] | None,
    ) -> Float[Tensor, "n d h w"]:
        if self.poses is not None and maps is not None and before is not None:
            pair = torch.cat([maps, before], 2)
            entered = entered + self.poses(_as_images(pair, "b f m h w -> (b f) h w m", entered.dtype))
        fine = F.silu(entered)
        coarse = F.silu(self.down(fine))
        coarse = coarse + F.silu(self.middle(coarse))
        return fine + F.pixel_shuffle(self.up(coarse), 2)


class ResidualLevels(nn.Module):
    """A U-Net with a residual block on the way down and one on the way up at each level, and one below.

    Every level has half the size of the one above.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        """Levels with these numbers of channels, the last one at the bottom."""
        super().__init__()
        steps = list(pairwise(widths))
        self.before = nn.ModuleList(ResidualBlock(size) for size, _ in steps)
        self.downs = nn.ModuleList(nn.Conv2d(size, low, 3, stride=2, padding=1) for size, low in steps)
        self.bottom = ResidualBlock(widths[-1])
        self.ups = nn.ModuleList(nn.Conv2d(low, 4 * size, 1) for size, low in steps)
        self.after = nn.ModuleList(ResidualBlock(size) for size, _ in steps)

    def forward(self, images: Float[Tensor, "n d h w"]) -> Float[Tensor, "n d h w"]:
        """Features of the same shape."""
        kept = []
        for block, down in zip(self.before, self.downs, strict=True):
            kept.append(block(images))
            images = down(kept[-1])
        images = self.bottom(images)
        for fine, up, block in zip(kept[::-1], self.ups[::-1], self.after[::-1], strict=True):
            images = block(fine + F.pixel_shuffle(up(images), 2))
        return F.silu(images)


class ResidualBlock(nn.Module):
    """x + conv(silu(conv(silu(x)))), initially the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = zero_convolution(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, images: Float[Tensor, "n d h w"]) -> Float[Tensor, "n d h w"]:
        """Images of the same shape."""
        changed: Tensor = self.second(F.silu(self.first(F.silu(images))))
        return images + changed


def _as_images(stacked: Tensor, pattern: str, dtype: torch.dtype) -> Float[Tensor, "n c h w"]:
    # Channels last in memory, by moving axes: `contiguous(memory_format=...)` does not work inside vmap.
    return rearrange(stacked, pattern).contiguous().movedim(-1, 1).to(dtype)


def zero_convolution(layer: nn.Conv2d) -> nn.Conv2d:
    """Zero-initialize a convolution."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
