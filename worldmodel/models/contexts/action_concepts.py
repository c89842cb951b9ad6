"""A context module in the action channel of a world model: the concepts are the parts of a robot.

    commands of arm k --MLP k--> block k --module under do(arms that hold)--> codes --linear--> embedding

A concept holds in a latent frame when its four commands are the same. What is learned while one arm holds is
learned of the other arm alone, so that motions of two arms that were never seen together can be put together:
the embedding of both is the sum of what each arm does. Effects between arms are the module's causal layer.
Axes: b samples, f latent frames, r transitions of one, a action size, m concepts, p places of the picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.models.contexts.context_module import ContextModule, ContextModuleConfig
from worldmodel.types import FRAMES_PER_LATENT

HOLD_TOLERANCE = 1e-3  # of normalized commands: a smaller change is no motion


@dataclass(frozen=True)
class ActionContextConfig:
    """Which concepts a robot's actions have, and the module's sizes."""

    concepts: tuple[str, ...] = ("left", "right")  # how the names of a concept's actions begin
    width: int = 64  # channels of a concept
    depth: int = 2  # widths of its expressive layers, both ends counted
    effects: bool = True  # arms act on each other (the causal layer); false: what they do adds up
    is_told: bool = True  # the module hears which concepts hold; false: one set of weights for all

    def __post_init__(self) -> None:
        check_ranges(self, width=(1, 4096), depth=(1, 64))
        if not self.concepts or len(set(self.concepts)) < len(self.concepts) or not all(self.concepts):
            raise ValueError(
                f"context.concepts are different beginnings of action names, got {self.concepts}"
            )


def concept_columns(names: Sequence[str], concepts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The action dimensions of each concept; each dimension belongs to one."""
    owners = [[concept for concept in concepts if name.startswith(concept)] for name in names]
    wrong = [name for name, found in zip(names, owners, strict=True) if len(found) != 1]
    if wrong or any([concept] not in owners for concept in concepts):
        raise ValueError(
            f"every action belongs to one concept and every concept has one: {list(concepts)} do not divide "
            f"{list(names)}; set model.context.concepts to beginnings of these names"
        )
    return tuple(tuple(i for i, found in enumerate(owners) if found == [concept]) for concept in concepts)


class ActionConcepts(nn.Module):
    """Four commands per latent frame to what the backbone hears, concept by concept; zero until trained."""

    def __init__(
        self,
        config: ActionContextConfig,
        columns: Sequence[Sequence[int]],
        *,
        hidden: int,
        width: int,
        map_tokens: int,
    ) -> None:
        super().__init__()
        self.columns, self.is_told, self.map_tokens = (
            [list(own) for own in columns],
            config.is_told,
            map_tokens,
        )
        self.embedders = nn.ModuleList(
            nn.Sequential(
                *(nn.Linear(FRAMES_PER_LATENT * len(own), hidden), nn.SiLU()),
                *(nn.Linear(hidden, hidden), nn.SiLU()),
                nn.Linear(hidden, config.width),
            )
            for own in columns
        )
        module = ContextModuleConfig(
            num_concepts=len(columns),
            in_width=config.width,
            out_width=config.width,
            depth=config.depth,
            norm="none",
            causal="reduced" if config.effects else "none",
            clamp=False,
            start="identity",
        )
        self.module = ContextModule(module, module.latent_dim)
        self.frames = nn.Linear(module.latent_dim, width)
        self.maps = nn.Linear(module.latent_dim, map_tokens * width) if map_tokens else None
        for layer in filter(None, (self.frames, self.maps)):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self, groups: Float[Tensor, "b f r a"]
    ) -> tuple[Float[Tensor, "b f d"], Float[Tensor, "b f p d"] | None]:
        """Embeddings of the latent frames, and of the places of the picture if there are any."""
        blocks = [
            embed(groups[..., own].flatten(2))
            for embed, own in zip(self.embedders, self.columns, strict=True)
        ]
        z = torch.cat(blocks, -1).flatten(0, 1)
        codes = self.module(z, self.holds(groups).flatten(0, 1) if self.is_told else ())
        codes = codes.unflatten(0, groups.shape[:2])
        maps = None if self.maps is None else self.maps(codes).unflatten(-1, (self.map_tokens, -1))
        return self.frames(codes), maps

    def holds(self, groups: Float[Tensor, "b f r a"]) -> Bool[Tensor, "b f m"]:
        """Which concepts do not move in which latent frame."""
        change = (groups - groups[:, :, :1]).abs().amax(2)
        return torch.stack([change[..., own].amax(-1) <= HOLD_TOLERANCE for own in self.columns], -1)
