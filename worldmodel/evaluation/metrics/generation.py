"""LPIPS and FID with the standard networks; their weights are provided by the user, none are shipped.

LPIPS 0.1 on AlexNet: `alexnet-owt-7be5be79.pth` (torchvision) and `alex.pth` (the linear layers of the lpips
package), or the same tensors as .safetensors. FID: `inception-2015-12-05.pt`, the TorchScript Inception-v3
with the original TensorFlow weights.
"""

from pathlib import Path

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, UInt8
from safetensors.torch import load_file
from torch import Tensor, nn

SHIFT = (-0.030, -0.088, -0.188)  # LPIPS normalizes pictures in [-1, 1] with these
SCALE = (0.458, 0.448, 0.450)
ALEXNET = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
BATCH = 100  # pictures at once
WEIGHTS = (".pth", ".safetensors")


class AlexNetDistance(nn.Module):
    """LPIPS: squared differences of unit-length features after AlexNet's ReLUs, weighted by channel."""

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for number, (channels, kernel, stride, padding) in enumerate(ALEXNET):
            layers += [nn.MaxPool2d(3, 2)] if number in (1, 2) else []
            layers += [nn.Conv2d(width, channels, kernel, stride, padding), nn.ReLU()]
            width = channels
        self.features = nn.Sequential(*layers)
        self.linear = nn.ModuleList(nn.Conv2d(size, 1, 1, bias=False) for size, *_ in ALEXNET)
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1), persistent=False)
        self.requires_grad_(False)

    @classmethod
    def load(cls, alexnet: str | Path, linear: str | Path) -> "AlexNetDistance":
        """The published weights, as .pth or .safetensors."""
        model = cls()
        backbone, heads = _tensors(Path(alexnet)), _tensors(Path(linear))
        weights = {name: tensor for name, tensor in backbone.items() if name.startswith("features.")}
        weights |= {
            f"linear.{number}.weight": heads[f"lin{number}.model.1.weight"] for number in range(len(ALEXNET))
        }
        model.load_state_dict(weights)
        return model.eval()

    @classmethod
    def from_folder(cls, folder: str | Path) -> "AlexNetDistance":
        """The weights in a folder, by their names."""
        names = [path for path in sorted(Path(folder).glob("alex*")) if path.suffix in WEIGHTS]
        features = [path for path in names if path.name.startswith("alexnet")]
        linear = [path for path in names if path not in features]
        if not (features and linear):
            raise ValueError(
                f"{folder}: expected alexnet-owt-7be5be79.pth and alex.pth for LPIPS, or .safetensors, "
                f"found {', '.join(path.name for path in names) or 'neither'}"
            )
        return cls.load(features[0], linear[0])

    @torch.no_grad()
    def curve(self, made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
        """The distance of every frame of a video, a few at a time."""
        return torch.cat([self(*pair) for pair in zip(made.split(8), real.split(8), strict=True)])

    def forward(self, made: Float[Tensor, "n 3 H W"], real: Float[Tensor, "n 3 H W"]) -> Float[Tensor, " n"]:
        """One distance per pair of pictures in [0, 1], from any device; on the CPU."""
        pair = (images.to(self.shift.device) for images in (made, real))
        first, second = ((2 * images - 1 - self.shift) / self.scale for images in pair)
        total, stage = first.new_zeros(len(made)), 0
        for layer in self.features:
            first, second = layer(first), layer(second)
            if isinstance(layer, nn.ReLU):
                total = total + self.linear[stage]((_unit(first) - _unit(second)).square()).mean((1, 2, 3))
                stage += 1
        return total.cpu()


def inception_features(
    images: UInt8[Tensor, "n 3 H W"], network: str | Path, device: torch.device | str = "cpu"
) -> Float[np.ndarray, "n d"]:
    """Features of a TorchScript network that is called as network(images, return_features=True)."""
    model = torch.jit.load(str(network), map_location=device).eval()
    with torch.no_grad():
        parts = [model(chunk.to(device), return_features=True).cpu() for chunk in images.split(BATCH)]
    return torch.cat(parts).double().numpy()


def frechet_distance(made: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"]) -> float:
    """|mean difference|^2 + tr(A + B - 2 (A B)^(1/2)) of two Gaussians fitted to features."""
    if min(len(made), len(real)) < 2:
        raise ValueError(f"a covariance needs at least 2 pictures, got {len(made)} and {len(real)}")
    covariance = [np.atleast_2d(np.cov(features, rowvar=False)) for features in (made, real)]
    # The trace of (A B)^(1/2) is the sum of the roots of the eigenvalues of A B, which are real and >= 0.
    eigenvalues = scipy.linalg.eigvals(covariance[0] @ covariance[1]).real
    root = np.sqrt(np.clip(eigenvalues, 0, None)).sum()
    shift = np.square(made.mean(0) - real.mean(0)).sum()
    return float(shift + np.trace(covariance[0]) + np.trace(covariance[1]) - 2 * root)


def _unit(features: Float[Tensor, "n d h w"]) -> Float[Tensor, "n d h w"]:
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def _tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"no weights at {path}")
    if path.suffix == ".safetensors":
        return load_file(path)
    loaded: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)  # saved on a GPU
    return loaded
