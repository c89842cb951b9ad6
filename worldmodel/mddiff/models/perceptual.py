"""LPIPS: distance between images in the features of a classifier (here VGG-16), with learned weights.

The weights are third-party: a safetensors file holds `features.N.weight` and `.bias` as torchvision names the
convolutions of VGG-16, and `linear.0.weight` to `linear.4.weight`, the 1x1 weights of LPIPS 0.1.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.files import read_into

SHIFT = (-0.030, -0.088, -0.188)  # mean and scale of the classifier's training images in [-1, 1]
SCALE = (0.458, 0.448, 0.450)
VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class PerceptualDistance(nn.Module):
    """Squared differences of unit-length features after every stage, weighted by channel, mean over space."""

    shift: Tensor
    scale: Tensor

    def __init__(self, stages: tuple[tuple[int, ...], ...] = VGG16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        self.ends = []  # layers whose outputs are compared
        width = 3
        for number, widths in enumerate(stages):
            layers += [nn.MaxPool2d(2)] if number else []
            for out in widths:
                layers += [nn.Conv2d(width, out, 3, padding=1), nn.ReLU()]
                width = out
            self.ends.append(len(layers) - 1)
        self.features = nn.Sequential(*layers)
        self.linear = nn.ModuleList(nn.Conv2d(widths[-1], 1, 1, bias=False) for widths in stages)
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1), persistent=False)
        self.requires_grad_(False)

    @classmethod
    def load(cls, path: str) -> "PerceptualDistance":
        """VGG-16 with the weights of this file."""
        distance = cls()
        read_into(distance, Path(path))
        return distance

    def forward(self, a: Float[Tensor, "b 3 H W"], b: Float[Tensor, "b 3 H W"]) -> Float[Tensor, " b"]:
        """One distance per pair of images in [-1, 1]."""
        total = a.new_zeros(len(a))
        a, b = ((images - self.shift) / self.scale for images in (a, b))
        stage = 0
        for number, layer in enumerate(self.features):
            a, b = layer(a), layer(b)
            if number == self.ends[stage]:
                difference = (_unit(a) - _unit(b)).square()
                total = total + self.linear[stage](difference).mean((1, 2, 3))
                stage = min(stage + 1, len(self.ends) - 1)
        return total


def _unit(features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
    # The epsilon keeps the gradient of the square root finite where all features are 0.
    return features / (features.square().sum(1, keepdim=True) + 1e-20).sqrt()
