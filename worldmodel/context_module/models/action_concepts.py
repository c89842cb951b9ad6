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
from worldmodel.context_module.models.context_module import ContextModule, ContextModuleConfig
from worldmodel.types import FRAMES_PER_LATENT

HOLD_TOLERANCE = 1e-3  # of normalized commands: a smaller change is no motion


@dataclass(frozen=True)
class ActionContextConfig:
    """Which concepts a robot's actions have, and the module's sizes."""

    concepts: tuple[str, ...] = ("left", "right")  # beginnings of action names; the longest one owns it
    width: int = 64  # channels of a concept
    depth: int = 2  # widths of its expressive layers, both ends counted
    effects: bool = True  # arms act on each other (the causal layer); false: what they do adds up
    is_told: bool = True  # the module hears which concepts hold; false: one set of weights for all
    # In training only. A sample that is not told shows the weights of moving concepts a concept that holds.
    told_share: float = 1.0  # of a batch, if is_told
    modulates: bool = True  # codes modulate all places of a frame; false: they reach each place apart

    def __post_init__(self) -> None:
        check_ranges(self, width=(1, 4096), depth=(1, 64), told_share=(0.0, 1.0))
        if not self.concepts or len(set(self.concepts)) < len(self.concepts) or not all(self.concepts):
            raise ValueError(
                f"context.concepts are different beginnings of action names, got {self.concepts}"
            )


def concept_columns(names: Sequence[str], concepts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The action dimensions of each concept; each belongs to the one whose name says most of it.

    Examples:
        >>> from worldmodel.context_module.models.action_concepts import concept_columns
        >>> names = ("left_x", "left_gripper", "right_x", "right_gripper")
        >>> concept_columns(names, ("left", "right"))
        ((0, 1), (2, 3))
        >>> concept_columns(names, ("left", "left_gripper", "right", "right_gripper"))
        ((0,), (1,), (2,), (3,))
    """
    owners = [
        max((concept for concept in concepts if name.startswith(concept)), key=len, default=None)
        for name in names
    ]
    if None in owners or set(concepts) - set(owners):
        raise ValueError(
            f"every action belongs to one concept and every concept has one: {list(concepts)} do not divide "
            f"{list(names)}; set model.context.concepts to beginnings of these names"
        )
    return tuple(tuple(i for i, found in enumerate(owners) if found == concept) for concept in concepts)


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
        self.columns, self.config, self.map_tokens = [list(own) for own in columns], config, map_tokens
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
        self.frames = nn.Linear(module.latent_dim, width) if config.modulates else None
        self.width = width
        self.maps = nn.Linear(module.latent_dim, map_tokens * width) if map_tokens else None
        for layer in filter(None, (self.frames, self.maps)):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self, groups: Float[Tensor, "b f r a"], do: Bool[Tensor, "b f m"] | None = None
    ) -> tuple[Float[Tensor, "b f d"], Float[Tensor, "b f p d"] | None]:
        """Embeddings of the latent frames, and of the places of the picture if there are any.

        `do` says which concepts hold; none: as the commands say, or nothing if the module is not told.
        """
        blocks = [
            embed(groups[..., own].flatten(2))
            for embed, own in zip(self.embedders, self.columns, strict=True)
        ]
        z = torch.cat(blocks, -1).flatten(0, 1)
        if do is None and self.config.is_told:
            do = self.heard(groups)
        codes = self.module(z, () if do is None else do.flatten(0, 1))
        codes = codes.unflatten(0, groups.shape[:2])
        maps = None if self.maps is None else self.maps(codes).unflatten(-1, (self.map_tokens, -1))
        if self.frames is None:
            return codes.new_zeros(*codes.shape[:2], self.width), maps
        return self.frames(codes), maps

    def heard(self, groups: Float[Tensor, "b f r a"]) -> Bool[Tensor, "b f m"]:
        """What holds, as the module is told: in training not for every sample."""
        holds = self.holds(groups)
        if self.training:
            # Batches are in random order, so that their last samples are random ones.
            holds[round(self.config.told_share * len(groups)) :] = False
        return holds

    def holds(self, groups: Float[Tensor, "b f r a"]) -> Bool[Tensor, "b f m"]:
        """Which concepts do not move in which latent frame."""
        change = (groups - groups[:, :, :1]).abs().amax(2)
        return torch.stack([change[..., own].amax(-1) <= HOLD_TOLERANCE for own in self.columns], -1)
