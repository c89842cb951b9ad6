"""Actions as pictures: the commanded poses of the hands, drawn where the camera sees them.

    transition     0   1   2   3 | 4   5   6   7      each is drawn, with a blob for every point of a hand
    latent frame 0 |----- 1 -----|----- 2 -----|      four drawings are channels of one latent frame

Maps are finer than the latent grid by `samples` on each side; the fine grid is folded into channels.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.data.pose_tracks import ARMS, HAND_POINTS, hand_points
from worldmodel.types import FRAMES_PER_LATENT, PoseTrack

TOOL = HAND_POINTS.index("tool")
# Per hand: a blob for each point, and one at the tool that weighs its inverse depth.
DRAWN = len(ARMS) * (len(HAND_POINTS) + 1)
SAMPLES = 2  # of a map, per latent and side
SIGMA = 0.7  # of a blob, in latents
MAP_CHANNELS = FRAMES_PER_LATENT * DRAWN * SAMPLES**2  # of the maps of one latent frame


class PoseMaps(nn.Module):
    """Draws pose tracks onto the latent grid; has no weights."""

    def __init__(self, grid: tuple[int, int], *, samples: int = 2, sigma: float = 0.7) -> None:
        """Maps for one size of picture.

        Args:
            grid: height and width of the latents.
            samples: of a map per latent and side.
            sigma: of a blob, in latents.
        """
        super().__init__()
        self.grid, self.samples, self.sigma = grid, samples, sigma

    def forward(
        self, track: PoseTrack, missing: Bool[Tensor, "b f"] | None = None
    ) -> Float[Tensor, "b f m h w"]:
        """Maps of every latent frame: empty for frame 0, and for those whose actions are missing."""
        drawn = self.draw(_with_depth(hand_points(track)))
        folded = rearrange(
            drawn,
            "b (f r) c (h p) (w q) -> b f (r c p q) h w",
            r=FRAMES_PER_LATENT,
            p=self.samples,
            q=self.samples,
        )
        maps = F.pad(folded, (0, 0, 0, 0, 0, 0, 1, 0))
        return maps if missing is None else maps.masked_fill(missing[:, :, None, None, None], 0.0)

    def draw_hands(self, track: PoseTrack) -> Float[Tensor, "n c y x"]:
        """A blob for every point of every row's hands, without depth."""
        points: Tensor = hand_points(track)
        return self.draw(points[None])[0]

    def draw(self, points: Float[Tensor, "b n c 4"]) -> Float[Tensor, "b n c y x"]:
        """A blob exp(-r^2 / 2 sigma^2) for every point, times its weight, on the fine grid."""
        height, width = self.grid
        x, y = self._profile(points[..., 0], width), self._profile(points[..., 1], height)
        return (points[..., 3:] * y)[..., None] * x[..., None, :]

    def _profile(self, place: Float[Tensor, "*b"], size: int) -> Float[Tensor, "*b fine"]:
        """A Gaussian along one side: blobs are products of two."""
        fine = size * self.samples
        centers = (torch.arange(fine, device=place.device, dtype=place.dtype) + 0.5) / fine
        return torch.exp(-0.5 * ((centers - place[..., None]) * (size / self.sigma)).square())


def _with_depth(points: Float[Tensor, "b n p 4"]) -> Float[Tensor, "b n c 4"]:
    """The points, and of each hand its tool again, with the inverse depth as its weight."""
    hands = points.unflatten(2, (len(ARMS), len(HAND_POINTS)))
    tool = hands[:, :, :, TOOL : TOOL + 1]
    near = torch.cat([tool[..., :3], tool[..., 2:3]], -1)
    return torch.cat([hands, near], 3).flatten(2, 3)


class PoseMapEmbedding(nn.Module):
    """Projects pose maps into the token embedding; starts at zero: an untrained one changes nothing."""

    def __init__(self, channels: int, patch_size: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.project = nn.Conv3d(channels, width, kernel_size=patch_size, stride=patch_size, bias=False)
        nn.init.zeros_(self.project.weight)

    def forward(self, maps: Float[Tensor, "b m f h w"]) -> Float[Tensor, "b d f p q"]:
        """What to add to the embedded patches of the same latent frames."""
        embedded: Tensor = self.project(maps.to(self.project.weight.dtype))
        return embedded
