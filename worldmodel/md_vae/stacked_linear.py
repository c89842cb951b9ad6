"""Linear layers of several independent models as one batched matrix product.

The models (one per seed) share nothing: summing their losses gives each the gradient it would have alone.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """S linear layers, one per model, each initialized like nn.Linear from its own generator."""

    def __init__(self, in_dim: int, out_dim: int, streams: Sequence[torch.Generator]) -> None:
        super().__init__()
        bound = in_dim**-0.5
        weight = [
            torch.empty(in_dim, out_dim).uniform_(-bound, bound, generator=stream) for stream in streams
        ]
        bias = [torch.empty(1, out_dim).uniform_(-bound, bound, generator=stream) for stream in streams]
        self.weight = nn.Parameter(torch.stack(weight))
        self.bias = nn.Parameter(torch.stack(bias))

    def forward(self, rows: Float[Tensor, "s n i"]) -> Float[Tensor, "s n o"]:
        return torch.baddbmm(self.bias, rows, self.weight)
