"""What the evaluation asks of a model of pictures by scalar concepts; VAEs and diffusion models alike."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, UInt8
from torch import Tensor


@runtime_checkable
class ConceptModel(Protocol):
    """Pictures to a few scalars and back."""

    def encode(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n d"]:
        """The codes of pictures, without randomness."""
        ...

    def decode(self, codes: Float[Tensor, "n d"]) -> Float[Tensor, "n 3 H W"]:
        """Pictures in [0, 1]."""
        ...
