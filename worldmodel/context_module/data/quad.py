"""`quad` and `quad_causal`: pictures of four quadrants and a shape, rendered on demand.

    noise [n 8] --structural model--> x [n 8] --normal CDF of x / 2--> factors in [0, 1] --> pictures

In `quad` all eight variables are independent; in `quad_causal` they form the graph of EDGES. An intervention
moves its concept to one end of its range, where observational values are rare.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from scipy.stats import norm
from torch import Tensor

from worldmodel.context_module.data.quad_pictures import FACTOR_NAMES, NUM_CONCEPTS, render_quads
from worldmodel.context_module.data.structural_model import Intervention, StructuralModel
from worldmodel.context_module.data.types import Do, all_pairs, check_do

QuadName = Literal["quad", "quad_causal"]
SQUEEZE = 2.0  # standard deviations of a variable per standard deviation of the normal CDF
INTERVENTIONS = {
    number: Intervention(mean, 0.4) for number, mean in enumerate((3.0, -3.0, 3.0, -3.0, 3.0, -3.0))
}
# (parent, child) -> weight. A chain quad1 -> quad2 -> size, a fork at quad3, a collider at orientation.
EDGES = {
    ("quad1", "quad2"): 0.7,
    ("quad3", "quad4"): -0.6,
    ("quad2", "size"): 0.55,
    ("quad3", "size"): 0.4,
    ("quad4", "orientation"): 0.5,
    ("size", "orientation"): -0.45,
    ("quad1", "shade"): 0.5,
}
SPLITS = ("train", "test")


def quad_model(name: QuadName) -> StructuralModel:
    """The causal model of the variables that pictures are rendered from."""
    weights = np.zeros((len(FACTOR_NAMES),) * 2)
    if name == "quad_causal":
        for (parent, child), weight in EDGES.items():
            weights[FACTOR_NAMES.index(child), FACTOR_NAMES.index(parent)] = weight
    return StructuralModel(weights, INTERVENTIONS)


@dataclass(frozen=True, eq=False)
class Quad:
    """Synthetic pictures under every intervention; an index gives a different picture in each context."""

    name: QuadName
    num_pictures: int  # of each context
    size: int = 64  # pixels a side
    split: Literal["train", "test"] = "train"
    seed: int = 0
    concept_names: tuple[str, ...] = field(default=FACTOR_NAMES[:NUM_CONCEPTS], init=False)
    held_out: tuple[Do, ...] = field(default=all_pairs(NUM_CONCEPTS), init=False)

    def __post_init__(self) -> None:
        if self.size % 2 or self.size < 8:
            raise ValueError(f"size must be even and at least 8 pixels, got {self.size}")

    def __len__(self) -> int:
        return self.num_pictures

    def images(self, do: Do, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """Render the pictures."""
        return render_quads(torch.from_numpy(self.all_factors(do, indices)).float(), self.size)

    def factors(self, do: Do, indices: Int64[np.ndarray, " n"]) -> Float[np.ndarray, "n m"]:
        """Values of the six concepts in [0, 1]."""
        return self.all_factors(do, indices)[:, :NUM_CONCEPTS]

    def all_factors(self, do: Do, indices: Int64[np.ndarray, " n"]) -> Float[np.ndarray, "n 8"]:
        """Values of concepts, shape and shade in [0, 1]."""
        do = check_do(do, NUM_CONCEPTS)
        variables = quad_model(self.name).sample(do, self._noise(do)[indices])
        return norm.cdf(variables / SQUEEZE)

    def _noise(self, do: Do) -> Float[np.ndarray, "pictures 8"]:
        if do not in self._noises:
            key = [self.seed, SPLITS.index(self.split), sum(2**concept for concept in do)]
            shape = (self.num_pictures, len(FACTOR_NAMES))
            self._noises[do] = np.random.default_rng(key).standard_normal(shape)
        return self._noises[do]

    @cached_property
    def _noises(self) -> dict[Do, np.ndarray]:
        return {}
