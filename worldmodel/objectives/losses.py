"""The return value of every training step."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Losses:
    """The scalar to minimize, and its unweighted terms (detached) for the log."""

    total: Float[Tensor, ""]
    parts: Mapping[str, Float[Tensor, ""]]
