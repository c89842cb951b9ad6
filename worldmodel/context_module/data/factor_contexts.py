"""Contexts from images with ground-truth factors (dSprites, Rooms, ...).

An intervention fixes or shifts one factor:

    values of a factor   0 1 2 3 4 5 6 7
    fix                  o o o o o o o x     o observational, x under the intervention
    shift                o o o o x x x x

All other factors keep their observational values, so pictures of pairs exist but are never trained on.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from worldmodel.context_module.data.types import Do, all_pairs, check_do
from worldmodel.mddiff.data.types import FactorDataset, grid_index, is_grid

Change = Literal["fix", "shift"]
SPLIT_NUMBERS = {"train": 0, "test": 1}


@dataclass(frozen=True, eq=False)
class FactorContexts:
    """Random pictures of a full grid by context; every factor with at least two values is a concept."""

    base: FactorDataset
    num_pictures: int  # of each context, drawn with replacement
    change: Change = "shift"
    split: Literal["train", "test"] = "train"  # each split is drawn independently from the same pictures
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_grid(self.base):
            raise ValueError(f"{self.base.name} is no full grid of its factors, so contexts cannot be drawn")
        if not self.concepts:
            raise ValueError(f"{self.base.name} has no factor with two values or more")

    @property
    def name(self) -> str:
        """Pictures and kind of intervention."""
        return f"{self.base.name}_{self.change}"

    @property
    def concepts(self) -> tuple[int, ...]:
        """Factors that can be intervened on."""
        return tuple(number for number, size in enumerate(self.base.factor_sizes) if size > 1)

    @property
    def concept_names(self) -> tuple[str, ...]:
        """Names of those factors."""
        return tuple(self.base.factor_names[number] for number in self.concepts)

    @property
    def held_out(self) -> tuple[Do, ...]:
        """All pairs of concepts."""
        return all_pairs(len(self.concepts))

    def __len__(self) -> int:
        return self.num_pictures

    def images(self, do: Do, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """Pictures of the drawn values."""
        return self.base.images(grid_index(self.base, self._values(do)[indices]))

    def factors(self, do: Do, indices: Int64[np.ndarray, " n"]) -> Float[np.ndarray, "n m"]:
        """Values of the concepts."""
        return self._values(do)[indices][:, list(self.concepts)].astype(np.float64)

    def _values(self, do: Do) -> Int64[np.ndarray, "pictures K"]:
        do = check_do(do, len(self.concepts))
        if do not in self._drawn:
            changed = {self.concepts[concept] for concept in do}
            key = [self.seed, SPLIT_NUMBERS[self.split], sum(2**concept for concept in do)]
            rng = np.random.default_rng(key)
            columns = [
                rng.integers(*self._range(factor, factor in changed), size=self.num_pictures)
                for factor in range(len(self.base.factor_sizes))
            ]
            self._drawn[do] = np.stack(columns, 1)
        return self._drawn[do]

    def _range(self, factor: int, is_changed: bool) -> tuple[int, int]:
        size = self.base.factor_sizes[factor]
        if size == 1:
            return 0, 1
        border = size - 1 if self.change == "fix" else (size + 1) // 2
        return (border, size) if is_changed else (0, border)

    @cached_property
    def _drawn(self) -> dict[Do, np.ndarray]:
        return {}
