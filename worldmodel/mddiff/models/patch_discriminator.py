"""The discriminator of the first stage: classifies every patch as real or reconstructed."""

from jaxtyping import Float
from torch import Tensor, nn


class PatchDiscriminator(nn.Module):
    """Five 4x4 convolutions with batch norm; three of them halve the image."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths, strides = (width, 2 * width, 4 * width, 8 * width), (2, 2, 2, 1)
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(zip((3, *widths[:-1]), widths, strict=True)):
            # Batch norm makes the bias redundant, so only layers without a norm have one.
            layers.append(nn.Conv2d(inputs, outputs, 4, strides[number], padding=1, bias=number == 0))
            layers += [nn.BatchNorm2d(outputs)] if number else []
            layers.append(nn.LeakyReLU(0.2))
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, padding=1))
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)
            elif isinstance(layer, nn.BatchNorm2d):
                nn.init.normal_(layer.weight, 1.0, 0.02)

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b 1 h w"]:
        """Scores, high for real patches."""
        scores: Tensor = self.layers(images)
        return scores
