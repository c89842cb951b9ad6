"""The interface of datasets whose pictures are grouped by context.

A context is the set of concepts that were intervened on, as sorted numbers: () is the observational one.
Axes: n pictures, m concepts, K factors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

Do = tuple[int, ...]


@dataclass(frozen=True)
class ContextBatch:
    """Pictures of one context."""

    images: UInt8[Tensor, "n 3 H W"]
    do: Do

    def to(self, device: torch.device) -> "ContextBatch":
        """The batch on another device."""
        return ContextBatch(self.images.to(device), self.do)


@runtime_checkable
class ContextDataset(Protocol):
    """Pictures of the observational context, of every single intervention, and of some held-out sets."""

    @property
    def name(self) -> str:
        """Name for tables and file names."""
        ...

    @property
    def concept_names(self) -> tuple[str, ...]:
        """One per concept, in the order of their numbers."""
        ...

    @property
    def held_out(self) -> tuple[Do, ...]:
        """Contexts with pictures that are never trained on."""
        ...

    def __len__(self) -> int:
        """Pictures of each context."""
        ...

    def images(self, do: Do, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """RGB pictures of a context."""
        ...

    def factors(self, do: Do, indices: Int64[np.ndarray, " n"]) -> Float[np.ndarray, "n m"] | None:
        """Ground-truth values of the concepts of the same pictures; None if unknown."""
        ...


def training_contexts(num_concepts: int) -> tuple[Do, ...]:
    """The observational context, then every single intervention."""
    return ((), *((concept,) for concept in range(num_concepts)))


def all_pairs(num_concepts: int) -> tuple[Do, ...]:
    """Every pair of concepts."""
    return tuple(combinations(range(num_concepts), 2))


def check_do(do: Iterable[int], num_concepts: int) -> Do:
    """Sort and remove repeats; ValueError for a concept that does not exist."""
    found = tuple(sorted(set(do)))
    if found and not (found[0] >= 0 and found[-1] < num_concepts):
        raise ValueError(f"concepts are 0 to {num_concepts - 1}, got do={found}")
    return found


def context_name(do: Do, concept_names: tuple[str, ...]) -> str:
    """The name in tables: obs, or the concepts joined by +."""
    return "+".join(concept_names[concept] for concept in do) or "obs"
