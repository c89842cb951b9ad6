"""A small network that locates both grippers and the manipulated object in a frame.

It measures positions in generated videos. It is therefore trained on real frames only (`train_locator.py`),
some of them blurred or noisy, and its error on held-out frames is stored with its weights.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.checked import build, check_ranges, is_regular, read_json
from worldmodel.device import AnyDevice, find_device
from worldmodel.files import read_module, write_json, write_tensors
from worldmodel.locator.truth import POINTS
from worldmodel.shipped import find_weights

WEIGHTS_FILE, DESCRIPTION_FILE = "locator.safetensors", "locator.json"
CELL = 2  # pixels of the network's input per cell of the heat map
SPREAD = 1.0  # cells, width of the target around the true position
WINDOW = 2  # cells around the peak that the position is averaged over
BATCH = 16  # frames at once: activations of more would not fit into a CPU's cache


@dataclass(frozen=True)
class LocatorConfig:
    """Sizes of the network."""

    height: int = 64  # pixels; frames of other sizes are resized to this
    width: int = 64  # pixels
    channels: int = 32  # at the resolution of the heat map; twice and three times as many below

    def __post_init__(self) -> None:
        check_ranges(self, height=(8, 4096), width=(8, 4096), channels=(8, 1024))
        if self.height % 8 or self.width % 8:
            raise ValueError(f"locator height and width are multiples of 8, got {self.height}x{self.width}")


@dataclass(frozen=True)
class Located:
    """Positions in pixels of the given frames, with confidences."""

    points: Float[Tensor, "t 3 2"]  # x, y; POINTS in order
    confidence: Float[Tensor, "t 3"]  # probability that the point is in the picture

    @property
    def is_visible(self) -> Bool[Tensor, "t 3"]:
        """Whether the confidence is above one half."""
        return self.confidence > 0.5


class Locator(nn.Module):
    """Frames -> heat map and visibility logit of every point.

    Examples:
        >>> import torch
        >>> from worldmodel import Locator
        >>> locator = Locator.from_pretrained("locator")  # the shipped one
        >>> found = locator.locate(torch.rand(4, 3, 64, 64))
        >>> tuple(found.points.shape)  # x, y of both grippers and the object
        (4, 3, 2)
    """

    def __init__(self, config: LocatorConfig) -> None:
        super().__init__()
        self.config = config
        wide, wider, widest = (factor * config.channels for factor in (1, 2, 3))
        self.fine = nn.Sequential(_conv(5, wide, stride=2), _conv(wide, wide))
        self.middle = nn.Sequential(_conv(wide, wider, stride=2), _conv(wider, wider))
        self.coarse = nn.Sequential(
            _conv(wider, widest, stride=2), _conv(widest, widest), _conv(widest, widest)
        )
        self.up_middle = _conv(wider + widest, wider)
        self.up_fine = _conv(wide + wider, wide)
        self.heat = nn.Conv2d(wide, len(POINTS), 1)
        self.seen = nn.Linear(widest, len(POINTS))

    def forward(
        self, frames: Float[Tensor, "n 3 H W"]
    ) -> tuple[Float[Tensor, "n 3 h w"], Float[Tensor, "n 3"]]:
        """Heat map logits (every CELL pixels) and visibility logits; frames in [0, 1], already resized."""
        fine = self.fine(torch.cat([2 * frames - 1, _coordinates(frames)], 1))
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = beside_enlarged(self.up_middle, middle, coarse)
        fine = beside_enlarged(self.up_fine, fine, middle)
        return self.heat(fine), self.seen(coarse.amax((2, 3)))

    @torch.no_grad()
    def locate(self, frames: Float[Tensor, "t 3 H W"]) -> Located:
        """Positions in frames of any size, in their own pixels; repeated frames are processed once.

        Frames come from any device, what is found is on the CPU.
        """
        frames = frames.to(self.seen.weight.device)
        frames, numbers = torch.unique_consecutive(frames, dim=0, return_inverse=True)
        height, width = frames.shape[-2:]
        size = (self.config.height, self.config.width)
        if (height, width) != size:
            frames = F.interpolate(frames, size, mode="bilinear", antialias=True)
        found = [self(part) for part in frames.clamp(0, 1).split(BATCH)]
        heat, seen = (torch.cat(parts)[numbers] for parts in zip(*found, strict=True))
        scale = frames.new_tensor([width / size[1], height / size[0]])
        return Located((CELL * peak_places(heat) * scale).cpu(), seen.sigmoid().cpu())

    def save_pretrained(self, folder: Path, errors: dict[str, float]) -> None:
        """Write the weights, and a description with the error on held-out frames."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS_FILE, self.state_dict())
        description = {"config": asdict(self.config), "points": list(POINTS), "errors": errors}
        write_json(folder / DESCRIPTION_FILE, description)

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: AnyDevice = "auto") -> "Locator":
        """Load a saved locator, onto a device: auto (a GPU if there is one), cpu, cuda or mps."""
        place = find_device(device)
        found = find_weights(str(folder))
        path = found / DESCRIPTION_FILE
        if not is_regular(path):
            raise ValueError(f"{folder} is not a locator folder: expected a {DESCRIPTION_FILE} in it")
        config = build(LocatorConfig, read_json(path).get("config"), f"{path}: config")
        return read_module(lambda: cls(config), found / WEIGHTS_FILE, str(path)).eval().to(place)


def peak_places(heat: Float[Tensor, "n p h w"]) -> Float[Tensor, "n p 2"]:
    """(x, y) of the peak in cells, averaged over a small window for subcell precision."""
    height, width = heat.shape[-2:]
    top = heat.flatten(2).argmax(2)
    rows, columns = (torch.arange(size, device=heat.device) for size in (height, width))
    near_row = (rows - (top // width)[..., None]).abs() <= WINDOW
    near_column = (columns - (top % width)[..., None]).abs() <= WINDOW
    near = near_row[..., :, None] & near_column[..., None, :]
    weight = heat.masked_fill(~near, float("-inf")).flatten(2).softmax(2).unflatten(2, (height, width))
    x = (weight.sum(2) * (columns + 0.5)).sum(2)
    y = (weight.sum(3) * (rows + 0.5)).sum(2)
    return torch.stack([x, y], -1)


def target_map(points: Float[Tensor, "n p 2"], height: int, width: int) -> Float[Tensor, "n p h w"]:
    """A Gaussian around each position (in the network's pixels), which sums to 1 over the heat map."""
    x, y = (points / CELL)[..., None, None].unbind(2)
    columns = torch.arange(width // CELL, device=points.device) + 0.5
    rows = torch.arange(height // CELL, device=points.device)[:, None] + 0.5
    logits = -((columns - x) ** 2 + (rows - y) ** 2) / (2 * SPREAD**2)
    return logits.flatten(2).softmax(2).unflatten(2, logits.shape[2:])


def beside_enlarged(
    block: nn.Sequential, fine: Float[Tensor, "n a h w"], coarse: Float[Tensor, "n b i j"]
) -> Float[Tensor, "n c h w"]:
    """Apply the block (of `_conv`) to `fine` concatenated with `coarse`, upsampled twice (nearest).

    A convolution of repeated pixels equals a transposed convolution of the original ones, with those weights
    summed that meet copies of the same pixel: 16 products instead of 36.
    """
    conv = block[0]
    assert isinstance(conv, nn.Conv2d), conv
    weights = conv.weight.split([fine.shape[1], coarse.shape[1]], 1)
    summed = F.avg_pool2d(weights[1].flip(2, 3), 2, stride=1, padding=1, divisor_override=1)
    answer = F.conv2d(fine, weights[0], conv.bias, padding=1)
    answer = answer + F.conv_transpose2d(coarse, summed.transpose(0, 1), stride=2, padding=1)
    return block[1:](answer)


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()
    )


def _coordinates(frames: Float[Tensor, "n 3 H W"]) -> Float[Tensor, "n 2 H W"]:
    count, _, height, width = frames.shape
    y = torch.linspace(-1, 1, height, device=frames.device)[:, None].expand(height, width)
    x = torch.linspace(-1, 1, width, device=frames.device).expand(height, width)
    return torch.stack([x, y]).to(frames.dtype).expand(count, -1, -1, -1)
