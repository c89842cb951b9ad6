"""The rows that are contrasted: their keys, scale and precision."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The keys of a batch's mechanism features, row by row."""

    keys: Float[Tensor, "*s n a"]
    valid: Bool[Tensor, "*s n"]  # rows that take part
    also: dict[str, Float[Tensor, "*s n b"]]  # further keys, for the auxiliary heads


def is_half_precision(z: Tensor) -> bool:
    """Whether the generator computes in half precision, judging by its input and autocast."""
    return z.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(z.device.type)


def full_precision(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in more if it has more."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def clip_rows(
    rows: Float[Tensor, "*s n d"], max_norm: float
) -> tuple[Float[Tensor, "*s n d"], Float[Tensor, "*s n"]]:
    """Rows shortened to at most `max_norm` (0 = unchanged), and their norms before."""
    # The clamp keeps the gradient finite at 0, the feature of a generator that ignores z.
    norm = rows.square().sum(-1).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    if max_norm:
        rows = rows * (max_norm / norm).clamp(max=1).unsqueeze(-1)
    return rows, norm


def unit_rows(rows: Float[Tensor, "*s n d"]) -> tuple[Float[Tensor, "*s n d"], Float[Tensor, "*s n"]]:
    """Rows scaled to unit root mean square, and their norms before; rows of zeros stay zero."""
    norm = rows.square().sum(-1).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    return rows * (rows.shape[-1] ** 0.5 / norm).unsqueeze(-1), norm
