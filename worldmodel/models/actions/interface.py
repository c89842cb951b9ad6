"""How actions reach Wan: four transitions make one embedding per latent frame, added to the time embedding.

    transition     0   1   2   3 | 4   5   6   7
    latent frame 0 |----- 1 -----|----- 2 -----|     frame 0 has none behind it and gets the null embedding

Wan turns its time embedding into the modulation of every block and of the output head, so the sum reaches all
of them. Everything new starts at zero: an untrained interface leaves Wan bit for bit as it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from diffusers.models.transformers.transformer_wan import WanTimeTextImageEmbedding
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.models.actions.pose_maps import PoseMaps
from worldmodel.types import FRAMES_PER_LATENT, Extras


@dataclass(frozen=True)
class ActionEmbedding:
    """The actions of a clip as the backbone hears them."""

    frames: Float[Tensor, "b f d"]  # added to the time embedding of each latent frame
    tokens: Float[Tensor, "b f 4 d"] | None = None  # one per transition, for cross-attention
    gates: Float[Tensor, "layers heads"] | None = None  # weight of the tokens in each head, zero at first
    maps: Float[Tensor, "b f p d"] | None = (
        None  # added to the video tokens of each latent frame, place by place
    )
    pose_maps: Float[Tensor, "b f m h w"] | None = None  # hand poses, drawn into the picture

    def each(self, change: Callable[[Tensor], Tensor]) -> "ActionEmbedding":
        """The same with every part that has samples and latent frames changed."""
        parts = {name: getattr(self, name) for name in PER_FRAME}
        return replace(self, **{name: change(part) for name, part in parts.items() if part is not None})


PER_FRAME = ("frames", "tokens", "maps", "pose_maps")


def join_embeddings(before: ActionEmbedding, after: ActionEmbedding) -> ActionEmbedding:
    """The latent frames of one behind those of the other; maps of unknown actions are zero."""
    parts = {}
    for name in PER_FRAME:
        pair = [getattr(before, name), getattr(after, name)]
        known = [part for part in pair if part is not None]
        if known:
            frames = (before.frames.shape[1], after.frames.shape[1])
            pair = [
                known[0].new_zeros(len(known[0]), count, *known[0].shape[2:]) if part is None else part
                for part, count in zip(pair, frames, strict=True)
            ]
            parts[name] = torch.cat(pair, 1)
    return replace(before, **parts)


class ActionInterface(nn.Module):
    """Lifts one action vector per transition to one embedding per latent frame, and optionally to more.

    `token_gates` (layers, heads) adds a token per transition, `map_tokens` an embedding for each of the video
    tokens of a latent frame. `pose_maps` draws poses into the picture as well. With `action_dim` 0 there is
    nothing to lift: every latent frame gets the null embedding.
    """

    def __init__(
        self,
        action_dim: int,
        width: int,
        *,
        hidden: int,
        token_gates: tuple[int, int] | None = None,
        map_tokens: int = 0,
        pose_maps: PoseMaps | None = None,
    ) -> None:
        super().__init__()
        self.pose_maps = pose_maps
        inputs = FRAMES_PER_LATENT * action_dim
        self.null = nn.Parameter(torch.zeros(width))
        self.frame_embedder = zero_init(_mlp(inputs, hidden, width)) if action_dim else None
        self.map_embedder = None
        if map_tokens and action_dim:
            # Pictures of poses need more room than poses.
            layers = zero_init(_mlp(inputs, 2 * hidden, map_tokens * width))
            self.map_embedder = nn.Sequential(*layers, nn.Unflatten(-1, (map_tokens, width)))
        self.token_embedder = _mlp(action_dim, hidden, width) if token_gates and action_dim else None
        if self.token_embedder is not None:
            assert token_gates is not None
            self.gates = nn.Parameter(torch.zeros(token_gates))
            self.null_token = nn.Parameter(0.02 * torch.randn(width))
            # Tells the four transitions of a latent frame apart.
            self.token_position = nn.Parameter(0.02 * torch.randn(FRAMES_PER_LATENT, width))

    def forward(
        self,
        actions: Float[Tensor, "b n a"],
        extras: Extras | None = None,
        missing: Bool[Tensor, "b f"] | None = None,
    ) -> ActionEmbedding:
        """`missing` marks the latent frames whose actions are unknown; frame 0 is always one of them."""
        embedding = self._embed(actions, missing)
        if self.pose_maps is None or not extras:
            return embedding
        return replace(embedding, pose_maps=self.pose_maps(extras, missing))

    def _embed(self, actions: Float[Tensor, "b n a"], missing: Bool[Tensor, "b f"] | None) -> ActionEmbedding:
        groups = rearrange(actions, "b (f r) a -> b f r a", r=FRAMES_PER_LATENT)
        if self.frame_embedder is None:
            return ActionEmbedding(self.null.expand(groups.shape[0], groups.shape[1] + 1, -1))
        inputs = groups.flatten(2)
        frames = _fill_null(self.frame_embedder(inputs), self.null, missing)
        maps = None
        if self.map_embedder is not None:
            maps = _fill_null(self.map_embedder(inputs), torch.zeros_like(self.null), missing)
        if self.token_embedder is None:
            return ActionEmbedding(frames, maps=maps)
        tokens = _fill_null(self.token_embedder(groups), self.null_token, missing)
        return ActionEmbedding(frames, tokens + self.token_position, self.gates, maps)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(inputs, hidden), nn.SiLU()),
        *(nn.Linear(hidden, hidden), nn.SiLU()),
        nn.Linear(hidden, outputs),
    )


def zero_init(layers: nn.Sequential) -> nn.Sequential:
    """The same layers, answering zero until they are trained."""
    for parameter in layers[-1].parameters():
        nn.init.zeros_(parameter)
    return layers


def _fill_null(
    embedded: Float[Tensor, "b n *rest d"], null: Float[Tensor, " d"], missing: Bool[Tensor, "b f"] | None
) -> Float[Tensor, "b f *rest d"]:
    """Put the null embedding in front (latent frame 0) and wherever the actions are missing."""
    first = null.to(embedded.dtype).expand(embedded.shape[0], 1, *embedded.shape[2:])
    frames = torch.cat([first, embedded], 1)
    if missing is None:
        return frames
    mask = missing.reshape(*missing.shape, *(1,) * (frames.ndim - 2))
    return torch.where(mask, null.to(frames.dtype), frames)


@dataclass(frozen=True)
class TextContext:
    """A prompt after Wan's text projection; for sampling also its keys and values in every block."""

    tokens: Float[Tensor, "b s d"]  # b may be 1: the same prompt for the whole batch
    keys: tuple[Float[Tensor, "b s heads e"], ...] = ()
    values: tuple[Float[Tensor, "b s heads e"], ...] = ()
    outputs: tuple[Float[Tensor, "b 1 d"], ...] = ()  # of a one-token prompt: what every query gets from it


@dataclass(frozen=True)
class FrameModulation:
    """Noise level and actions of every latent frame, as Wan's blocks and output head take them."""

    embedding: Float[Tensor, "*steps rows d"]  # a row is a latent frame of a sample
    projection: Float[Tensor, "*steps rows modulation"]

    def unbind(self) -> list["FrameModulation"]:
        """One for each step."""
        return [FrameModulation(*step) for step in zip(self.embedding, self.projection, strict=True)]


@dataclass(frozen=True)
class FrameCondition:
    """All conditions of one network call, as handed to the wrapped `condition_embedder`."""

    actions: ActionEmbedding
    text: TextContext
    modulation: FrameModulation | None = None  # made before (sampling), or now


class FrameConditionEmbedder(WanTimeTextImageEmbedding):
    """Wan's `condition_embedder` (the same parameters under the same names), one row per latent frame.

    Wan hands its image condition to this module untouched; a text-to-video backbone has none, so that
    argument carries the `FrameCondition`: no state is kept between calls.
    """

    def __init__(self, base: WanTimeTextImageEmbedding) -> None:
        nn.Module.__init__(self)
        for name, module in base.named_children():
            self.add_module(name, module)

    def forward(  # type: ignore[override]
        self,
        timestep: Float[Tensor, " rows"],
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: FrameCondition,
        timestep_seq_len: None = None,
    ) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows modulation"], FrameCondition, None]:
        """See WanTimeTextImageEmbedding; a row is a latent frame of a sample."""
        condition = encoder_hidden_states_image
        modulation = condition.modulation or self.modulate(timestep, condition)
        return modulation.embedding, modulation.projection, condition, None

    def modulate(self, timestep: Float[Tensor, "*steps rows"], condition: FrameCondition) -> FrameModulation:
        """The modulation at these timesteps; the actions are those of every step."""
        features = self.timesteps_proj(timestep.flatten()).to(next(self.time_embedder.parameters()).dtype)
        embedding = self.time_embedder(features).type_as(condition.text.tokens).unflatten(0, timestep.shape)
        embedding = embedding + condition.actions.frames.flatten(0, 1).to(embedding.dtype)
        return FrameModulation(embedding, self.time_proj(self.act_fn(embedding)))
