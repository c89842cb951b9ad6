"""What a small net trained from scratch needs beside its backbone, and a published one does not."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.desk.refiner import LatentRefiner
from worldmodel.models.attention_mask import AttentionView, StreamView

Prediction = Literal["velocity", "clean"]


@dataclass(frozen=True)
class SmallNetConfig:
    """Additions to a small backbone."""

    prediction: Prediction = "clean"  # what the network predicts
    scene: bool = True  # learned absolute position and projected first frame
    refiner_width: int = 0  # channels of a U-Net over the clean estimate, against seams of patches; 0: none

    def __post_init__(self) -> None:
        check_ranges(self, refiner_width=(0, 4096))
        if self.refiner_width and self.prediction != "clean":
            raise ValueError(f"refiner_width refines clean estimates, got prediction {self.prediction!r}")


class SmallNet(nn.Module):
    """The scene embedding, clean estimates and their refiner."""

    def __init__(
        self,
        config: SmallNetConfig,
        grid: tuple[int, int, int],
        patch_size: tuple[int, int, int],
        channels: int,
        width: int,
        map_channels: int,
    ) -> None:
        super().__init__()
        self.predicts_clean = config.prediction == "clean"
        self.scene = SceneEmbedding(grid, patch_size, channels, width) if config.scene else None
        self.refiner = build_refiner(config, grid, channels, map_channels)

    def clean(
        self,
        answer: Float[Tensor, "b c f h w"],
        noisy: Float[Tensor, "b c f h w"],
        sigma: Float[Tensor, "b f"],
        maps: Float[Tensor, "b n m h w"] | None,
        stream: StreamView | None,
    ) -> Float[Tensor, "b c f h w"]:
        """The clean estimate of all frames, or of a stream's latest; an answer of zero is a still scene."""
        if stream is not None:
            clean, maps = stream.first + answer, None if maps is None else maps[:, -1:]
            if self.refiner is None:
                return clean
            before, first = stream.before, stream.first
            return clean + self.refiner.change(clean, before, first, maps, stream.maps_before)
        clean = noisy[:, :, :1] + answer
        return clean if self.refiner is None else self.refiner(clean, noisy, sigma, maps)


def build_refiner(
    config: SmallNetConfig, grid: tuple[int, int, int], channels: int, map_channels: int
) -> LatentRefiner | None:
    """The refiner of the clean estimate, where the config asks for one."""
    if not config.refiner_width:
        return None
    if grid[1] % 2 or grid[2] % 2:
        raise ValueError(
            f"a refiner halves the latents, got {grid[1]}x{grid[2]}: set model.small.refiner_width=0"
        )
    return LatentRefiner(channels, config.refiner_width, map_channels=map_channels)


class SceneEmbedding(nn.Module):
    """A learned absolute position and the projected first latent frame, added to every token.

    Without it a small backbone spends long on finding out what stands still where. Starts at zero and is tied
    to one latent grid. A causal backbone learns in time only which frame is the first: how far apart two
    frames are it knows from its rotary tables, however long the video.
    """

    def __init__(
        self, grid: tuple[int, int, int], patch_size: tuple[int, int, int], channels: int, width: int
    ) -> None:
        super().__init__()
        frames, height, wide = grid
        self.time = nn.Parameter(torch.zeros(width, frames, 1, 1))
        self.space = nn.Parameter(torch.zeros(width, 1, height // patch_size[1], wide // patch_size[2]))
        self.first = nn.Conv3d(channels, width, kernel_size=patch_size, stride=patch_size, bias=False)
        nn.init.zeros_(self.first.weight)

    def forward(
        self, latents: Float[Tensor, "b c f h w"], view: AttentionView | None = None
    ) -> Float[Tensor, "b d f p q"]:
        """Embedding of the scene that is added to the embedded patches; `view` is the causal backbone's."""
        latents, time = latents.to(self.space.dtype), self.time[:, : latents.shape[2]]
        first = latents[:, :, :1]
        if view is not None:
            # The first frame of a video and any other: streams have no last one.
            num_first = int(view.starts)
            other = self.time[:, 1:2].expand(-1, latents.shape[2] - num_first, -1, -1)
            time = torch.cat([time[:, :num_first], other], 1)
            first = first if view.stream is None else view.stream.first.to(latents)
        return self.first(first) + self.space + time
