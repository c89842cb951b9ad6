"""What an action path is: settings that read rows of a clip, and a module that embeds them.

    raw commands, views --PathConfig.read--> extras, one row per transition --module--> ActionEmbedding

    transition     0   1   2   3 | 4   5   6   7
    latent frame 0 |----- 1 -----|----- 2 -----|     frame 0 has no transition behind it

A path with its settings is one file here, and one field of `ActionConfig`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from worldmodel.types import FRAMES_PER_LATENT, Extras, Row, Transitions


@dataclass(frozen=True)
class PathShape:
    """The sizes that a path is built for."""

    action_dim: int  # of one transition, padded; 0: regime no_action
    width: int  # channels of a token, d
    num_layers: int
    num_heads: int
    patch: tuple[int, int]  # latents per token: height, width
    grid: tuple[int, int]  # latents of a frame: height, width

    @property
    def num_places(self) -> int:
        """Tokens of a latent frame, p."""
        return self.grid[0] // self.patch[0] * (self.grid[1] // self.patch[1])


@dataclass(frozen=True)
class PathConfig:
    """Settings of a path. They hold no weights and pickle: data workers read clips with them."""

    version: ClassVar[int] = 1  # of the rows; cached rows of another version are read anew
    regimes: ClassVar[tuple[str, ...]] = ("no_action", "acg", "lacg")  # that it works with
    summary: ClassVar[str] = ""  # its line in the model card
    map_channels: ClassVar[int] = 0  # of `ActionEmbedding.maps`
    # Whether it fills `tokens`, or `context` of several tokens: of a single one every query gets the same.
    cross_attends: ClassVar[bool] = False
    needs_views: ClassVar[bool] = False  # whether it reads the camera's matrices
    on_backbone: ClassVar[bool] = False  # `model.pretrained` brings its weights along with the backbone

    @property
    def replaces_prompt(self) -> bool:
        """Whether it fills `context`."""
        return False

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        """Name -> one row of every extra; empty: the path needs the actions alone."""
        return {}

    def read(self, clip: Transitions) -> Extras:
        """The rows of a clip; a ValueError says what is missing, and what to set instead."""
        return {}

    def mark(self, images: UInt8[np.ndarray, "t H W 3"], extras: Extras) -> UInt8[np.ndarray, "t H W 3"]:
        """Frames of a clip with what the rows say drawn in, for the video of the first batch."""
        return images

    def build(self, shape: PathShape) -> nn.Module:
        """Its module: forward(actions[b n u], extras, missing[b f]) -> ActionEmbedding."""
        raise NotImplementedError


@dataclass(frozen=True)
class ActionEmbedding:
    """The actions of a clip as the backbone takes them; a path fills in what it uses."""

    frames: Float[Tensor, "b f d"] | None = None  # added to the time embedding (AdaLN)
    tokens: Float[Tensor, "b f r d"] | None = None  # cross-attention from the same latent frame
    places: Float[Tensor, "b f p d"] | None = None  # added to the embedded patches
    first_block: Float[Tensor, "b f p d"] | None = None  # added behind cross-attention in the first block
    maps: Float[Tensor, "b f m h w"] | None = None  # as `places`, not projected, for a small net's refiner
    # In the place of the prompt, for a whole clip or for each latent frame.
    context: Float[Tensor, "b s d"] | Float[Tensor, "b f s d"] | None = None

    def __add__(self, other: "ActionEmbedding") -> "ActionEmbedding":
        """Those of two paths: tokens, maps and contexts side by side, all else summed."""
        beside = {"tokens": 2, "maps": 2, "context": -2}
        found = {}
        for name, part in other._parts().items():
            own = getattr(self, name)
            joined = torch.cat([own, part], beside[name]) if own is not None and name in beside else None
            found[name] = joined if joined is not None else part if own is None else own + part
        return replace(self, **found)

    def __getitem__(self, which: slice) -> "ActionEmbedding":
        """Of some latent frames."""
        return replace(self, **{name: part[:, which] for name, part in self._parts(per_frame=True).items()})

    def concat(self, after: "ActionEmbedding") -> "ActionEmbedding":
        """These latent frames, then those of `after`; both embeddings come from the same paths."""
        own, others = self._parts(), after._parts()
        if own.keys() != others.keys():
            raise ValueError(f"embeddings of {', '.join(own)} and of {', '.join(others)} cannot be joined")
        parts = after._parts(per_frame=True).items()
        return replace(after, **{name: torch.cat([own[name], part], 1) for name, part in parts})

    @property
    def num_samples(self) -> int:
        """Of the batch, b."""
        return len(next(iter(self._parts().values())))

    def _parts(self, per_frame: bool = False) -> dict[str, Tensor]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: part
            for name, part in found.items()
            if part is not None and not (per_frame and name == "context" and part.ndim == 3)
        }


class GatedTokens(nn.Module):
    """Base of a path that fills `tokens`, which enter every layer with a weight for each head."""

    gates: nn.Parameter  # [layers heads], before tanh; zero at first


def blank_extras(
    row_shapes: Mapping[str, Row], batch: int, num_transitions: int, device: torch.device | str = "cpu"
) -> Extras:
    """Rows of zeros: for unknown actions, estimates and smoke tests."""
    return {
        name: torch.zeros(batch, num_transitions, *row.shape, dtype=row.dtype, device=device)
        for name, row in row_shapes.items()
    }


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Three linear layers."""
    return nn.Sequential(
        *(nn.Linear(inputs, hidden), nn.SiLU()),
        *(nn.Linear(hidden, hidden), nn.SiLU()),
        nn.Linear(hidden, outputs),
    )


def zero_init(layers: nn.Sequential) -> nn.Sequential:
    """The same layers, whose output is zero until they are trained."""
    for parameter in layers[-1].parameters():
        nn.init.zeros_(parameter)
    return layers


def action_groups(actions: Float[Tensor, "b n u"]) -> Float[Tensor, "b g r u"]:
    """Group transitions by latent frame: four for each frame after frame 0."""
    return rearrange(actions, "b (g r) u -> b g r u", r=FRAMES_PER_LATENT)


def fill_null(
    embedded: Float[Tensor, "b g *rest d"], null: Float[Tensor, " d"], missing: Bool[Tensor, "b f"]
) -> Float[Tensor, "b f *rest d"]:
    """Put the null embedding in front (latent frame 0) and wherever the actions are missing."""
    first = null.to(embedded.dtype).expand(embedded.shape[0], 1, *embedded.shape[2:])
    frames = torch.cat([first, embedded], 1)
    mask = missing.reshape(*missing.shape, *(1,) * (frames.ndim - 2))
    return torch.where(mask, null.to(frames.dtype), frames)


class PatchProjection(nn.Conv3d):
    """Maps on the latent grid -> what is added to the embedded patches; zero until it is trained."""

    def __init__(self, channels: int, shape: PathShape) -> None:
        patch = (1, *shape.patch)
        super().__init__(channels, shape.width, kernel_size=patch, stride=patch, bias=False)
        nn.init.zeros_(self.weight)

    def forward(self, maps: Float[Tensor, "b f m h w"]) -> Float[Tensor, "b f p d"]:
        """One row for every patch of every latent frame."""
        embedded = super().forward(maps.transpose(1, 2).to(self.weight.dtype))
        return rearrange(embedded, "b d f y x -> b f (y x) d")
