"""A data set whose pictures show their factors as gray levels, and a model that reads and draws them."""

import numpy as np
import torch
from torch import Tensor

from worldmodel.mddiff.data.array_factors import ArrayFactors

STEP = 20  # gray levels between neighboring values
SIZE = 18


def striped(sizes: tuple[int, ...] = (4, 5, 6)) -> ArrayFactors:
    """Each factor is the level of one horizontal stripe."""
    count = int(np.prod(sizes))
    values = np.stack(np.unravel_index(np.arange(count), sizes), 1)
    stripes = np.repeat(values * STEP, SIZE // len(sizes), axis=1).astype(np.uint8)
    pixels = np.repeat(stripes[:, :, None], SIZE, axis=2)
    return ArrayFactors("striped", tuple("abcdef"[: len(sizes)]), sizes, np.ascontiguousarray(pixels))


class StripeReader:
    """The ideal model: codes are the factors, in units of one value."""

    def __init__(self, num_factors: int = 3) -> None:
        self.height = SIZE // num_factors

    def encode(self, images: Tensor) -> Tensor:
        return images[:, 0, :: self.height, 0].float() / STEP

    def decode(self, codes: Tensor) -> Tensor:
        rows = (codes * STEP / 255).repeat_interleave(self.height, 1)
        return rows[:, None, :, None].expand(-1, 3, -1, SIZE).clone()


class MixedReader(StripeReader):
    """Its codes are a rotation of the factors: nothing is lost, everything is entangled."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.turn = torch.linalg.qr(torch.randn(3, 3, generator=generator))[0]

    def encode(self, images: Tensor) -> Tensor:
        return super().encode(images) @ self.turn

    def decode(self, codes: Tensor) -> Tensor:
        return super().decode(codes @ self.turn.T)
