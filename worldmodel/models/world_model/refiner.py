"""What patches leave undone in a small backbone: seams between them, and detail below their size."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn


class LatentRefiner(nn.Module):
    """A small U-Net over each latent frame but the first, which sees the frame before and the first as well.

    A token of a small backbone stands for a large patch and draws it without seeing its neighbors' drawing.
    Starts at zero: an untrained refiner changes nothing.
    """

    def __init__(self, latent_channels: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3 * latent_channels, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.Conv2d(2 * width, 4 * width, 1)
        self.leave = nn.Conv2d(width, latent_channels, 3, padding=1)
        for parameter in self.leave.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self,
        estimate: Float[Tensor, "b c f h w"],
        noisy: Float[Tensor, "b c f h w"],
        sigma: Float[Tensor, "b f"],
    ) -> Float[Tensor, "b c f h w"]:
        """A better estimate of the clean latents; frames of sigma 0 are seen as they were given."""
        seen = torch.where(sigma[:, None, :, None, None] == 0, noisy, estimate)
        before, first = seen[:, :, :-1], seen[:, :, :1]
        stacked = torch.cat([seen[:, :, 1:], before, first.expand_as(before)], 1)
        # Channels last in memory, by moving axes: `contiguous(memory_format=...)` does not run inside vmap.
        images = rearrange(stacked, "b c f h w -> (b f) h w c").contiguous().movedim(-1, 1)
        fine = F.silu(self.enter(images.to(self.enter.weight.dtype)))
        coarse = F.silu(self.down(fine))
        coarse = coarse + F.silu(self.middle(coarse))
        change = self.leave(fine + F.pixel_shuffle(self.up(coarse), 2))
        change = rearrange(change, "(b f) c h w -> b c f h w", b=len(estimate)).to(estimate.dtype)
        return torch.cat([estimate[:, :, :1], estimate[:, :, 1:] + change], 2)
