"""An action path of odd names, shapes and types, from the recipe in CONTRIBUTING.md; test_odd_rows.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from worldmodel.models.actions.protocol import ActionEmbedding, PathConfig, PathShape, fill_null, zero_init
from worldmodel.types import FRAMES_PER_LATENT, Extras, Row, Transitions

COUNTS, KNOWN, CODES, SUMS = "counts of/left.hand", "0", "latents", "robot_actions"
SEEN: list[Extras] = []  # what every call of a module was given


@dataclass(frozen=True)
class OddRowsConfig(PathConfig):
    """Rows that no other path has."""

    hidden: int = 8

    version: ClassVar[int] = 7
    summary: ClassVar[str] = "odd rows"

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        return {
            COUNTS: Row((2, 1, 3), torch.int64),
            KNOWN: Row((), torch.bool),
            CODES: Row((1,), torch.uint8),
            SUMS: Row((3,), torch.float64),
        }

    def read(self, clip: Transitions) -> Extras:
        change = (clip.actions - torch.cat([clip.before[-1:], clip.actions[:-1]])).double()
        counts = (1000 * change[:, :6]).long().reshape(-1, 2, 1, 3)
        known = torch.full((len(change),), clip.state is not None)
        codes = (100 * clip.actions[:, :1].double()).clamp(0, 255).to(torch.uint8)
        return {COUNTS: counts, KNOWN: known, CODES: codes, SUMS: change.cumsum(1)[:, -3:]}

    def build(self, shape: PathShape) -> nn.Module:
        return OddRows(self.hidden, shape.width)


class OddRows(nn.Module):
    """A lookup by the integers, and two layers."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.codes = nn.Embedding(256, hidden)
        self.layers = zero_init(
            nn.Sequential(nn.Linear(hidden + 10, hidden), nn.SiLU(), nn.Linear(hidden, width))
        )

    def forward(self, actions: Tensor, extras: Extras, missing: Tensor) -> ActionEmbedding:
        rows = {name: extras[name] for name in (COUNTS, KNOWN, CODES, SUMS)}
        SEEN.append(rows)
        known = rows[KNOWN][..., None]
        numbers = torch.cat([rows[COUNTS].flatten(2) / 1000, known, rows[SUMS]], -1)
        found = torch.cat([self.codes(rows[CODES][..., 0].long()), numbers.to(self.codes.weight.dtype)], -1)
        groups = found.unflatten(1, (-1, FRAMES_PER_LATENT)).mean(2)
        embedded = self.layers(groups)
        return ActionEmbedding(frames=fill_null(embedded, embedded.new_zeros(embedded.shape[-1]), missing))
