"""The interface that the evaluation needs from a concept model, be it a VAE or a diffusion model."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, UInt8
from torch import Tensor


@runtime_checkable
class ConceptModel(Protocol):
    """Maps images to a few scalars and back."""

    def encode(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n d"]:
        """The codes of images, without randomness."""
        ...

    def decode(self, codes: Float[Tensor, "n d"]) -> Float[Tensor, "n 3 H W"]:
        """Images in [0, 1]."""
        ...
