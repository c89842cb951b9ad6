"""The conditions of a network call, and attention of Wan blocks whose tokens are laid out frame by frame.

Tokens are [(b f) p d] instead of [b (f p) d]. In this layout Wan's own block code applies one modulation per
latent frame by broadcasting, where its per-token modulation would be written out for every token. Only
attention has to know that the frames of a sample belong together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanAttnProcessor,
    WanTimeTextImageEmbedding,
)
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.models.actions.protocol import ActionEmbedding, GatedTokens
from worldmodel.models.attention_mask import AttentionView, RotaryTables


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
class NetworkCall:
    """All conditions of one call of the backbone."""

    actions: ActionEmbedding
    text: TextContext
    modulation: FrameModulation | None = None  # made before (sampling), or now
    view: AttentionView | None = None  # what the latent frames see of each other; none: all of it


_CALL: ContextVar[NetworkCall | None] = ContextVar("network_call", default=None)


@contextmanager
def network_call(call: NetworkCall) -> Iterator[None]:
    """The conditions of the call of the backbone inside this block.

    Wan hands its parts nothing but latents, timesteps and prompt. So the other conditions reach them through
    a context variable, which threads do not share.
    """
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def current_call() -> NetworkCall | None:
    """The conditions of the call that is running."""
    return _CALL.get()


class FrameConditionEmbedder(WanTimeTextImageEmbedding):
    """Wan's `condition_embedder` (the same parameters under the same names), one row per latent frame.

    It returns the `NetworkCall` in the place of the prompt, so that the blocks get it as an argument: a
    checkpointed block finds it again in the backward pass.
    """

    def __init__(self, base: WanTimeTextImageEmbedding) -> None:
        nn.Module.__init__(self)
        for name, module in base.named_children():
            self.add_module(name, module)

    def forward(  # type: ignore[override]
        self,
        timestep: Float[Tensor, " rows"],
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: None = None,
        timestep_seq_len: None = None,
    ) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows modulation"], NetworkCall, None]:
        """See WanTimeTextImageEmbedding; a row is a latent frame of a sample."""
        call = current_call()
        assert call is not None, "the backbone is called through ForwardDynamics"
        modulation = call.modulation or self.modulate(timestep, call.actions, encoder_hidden_states)
        return modulation.embedding, modulation.projection, call, None

    def modulate(
        self, timestep: Float[Tensor, "*steps rows"], actions: ActionEmbedding, like: Tensor
    ) -> FrameModulation:
        """The modulation at these timesteps; the actions are those of every step."""
        features = self.timesteps_proj(timestep.flatten()).to(next(self.time_embedder.parameters()).dtype)
        embedding = self.time_embedder(features).type_as(like).unflatten(0, timestep.shape)
        if actions.frames is not None:
            embedding = embedding + actions.frames.flatten(0, 1).to(embedding.dtype)
        return FrameModulation(embedding, self.time_proj(self.act_fn(embedding)))


class VideoAttnProcessor(WanAttnProcessor):
    """Wan's self-attention over all tokens of a sample, or those that a view leaves visible.

    In a stream the tokens are those of the next frames, and look at remembered keys and values as well.
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer

    def __call__(
        self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None
    ) -> Tensor:
        """See WanAttnProcessor; the `RotaryTables` tell how many tokens a sample has and what they see."""
        cosines, sines, mask, keys = rotary_emb
        whole = hidden_states.reshape(-1, cosines.shape[1], hidden_states.shape[-1])
        if keys is not None:
            return self._attend_to_memory(attn, whole, rotary_emb).view_as(hidden_states)
        return super().__call__(attn, whole, None, mask, (cosines, sines)).view_as(hidden_states)

    def _attend_to_memory(
        self, attn: WanAttention, tokens: Float[Tensor, "b s d"], tables: RotaryTables
    ) -> Float[Tensor, "b s d"]:
        assert tables.keys is not None
        query = attn.norm_q(attn.to_q(tokens)).unflatten(2, (attn.heads, -1))
        key, value = tables.keys.call.read(self.layer, *project_context(attn, tokens))
        attended = dispatch_attention_fn(
            rotate(query, tables.cosines, tables.sines),
            rotate(key, tables.keys.cosines, tables.keys.sines),
            value,
            attn_mask=tables.mask,
            backend=self._attention_backend,
        )
        output: Tensor = attn.to_out[1](attn.to_out[0](attended.flatten(2, 3).type_as(query)))
        return output


class ConditionAttnProcessor(WanAttnProcessor):
    """Cross-attention to the prompt and, when there are any, to the action tokens of the own latent frame.

    A prompt shared by the batch is projected to keys and values once, not once per sample; while sampling
    they come ready from the `TextContext`. A prompt of one token has one output, known without asking.
    Action tokens go through the same projections and enter with a gate that starts at zero. A context that
    an action path embeds takes the place of the prompt.
    """

    def __init__(self, layer: int, gates: GatedTokens | None = None) -> None:
        """The processor of one block.

        Args:
            layer: number of the block.
            gates: weighs the action tokens in each head. Read anew at every call, since sharded training
                replaces its tensors.
        """
        super().__init__()
        self.layer, self.gates = layer, gates

    def __call__(
        self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None
    ) -> Tensor:
        """See WanAttnProcessor; the context is a `NetworkCall`."""
        output = self._cross_attend(attn, hidden_states, encoder_hidden_states)
        added = None if self.layer else encoder_hidden_states.actions.first_block
        return output if added is None else output + added.flatten(0, 1).to(output.dtype)

    def _cross_attend(self, attn: WanAttention, hidden_states: Tensor, call: NetworkCall) -> Tensor:
        text, actions, context = call.text, call.actions, call.actions.context
        if text.tokens.shape[1] == 1 and actions.tokens is None and context is None:
            output = text.outputs[self.layer] if text.outputs else single_token_attention(attn, text.tokens)
            return output.repeat_interleave(len(hidden_states) // len(output), 0)
        if actions.tokens is None and context is not None and context.shape[2:-1] == (1,):
            token = context.flatten(0, 1).to(hidden_states.dtype)
            return single_token_attention(attn, token).expand_as(hidden_states)
        query = attn.norm_q(attn.to_q(hidden_states)).unflatten(2, (attn.heads, -1))
        attended = self._attend_to_context(attn, query, call)
        if actions.tokens is not None:
            attended = attended + self._attend_to_tokens(attn, query, actions.tokens)
        return attn.to_out[1](attn.to_out[0](attended.flatten(2, 3).type_as(query)))

    def _attend_to_context(
        self, attn: WanAttention, query: Float[Tensor, "rows p h e"], call: NetworkCall
    ) -> Float[Tensor, "rows p h e"]:
        context, text = call.actions.context, call.text
        if context is not None and context.ndim == 4:  # of each latent frame
            return self._attend(query, *project_context(attn, context.flatten(0, 1).to(query.dtype)))
        if context is not None:
            key, value = project_context(attn, context.to(query.dtype))
        elif text.keys:
            key, value = text.keys[self.layer], text.values[self.layer]
        else:
            key, value = project_context(attn, text.tokens)
        whole = query.unflatten(0, (call.actions.num_samples, -1)).flatten(1, 2)
        return self._attend(whole, key, value).reshape(query.shape)

    def _attend(
        self, query: Float[Tensor, "b s h e"], key: Float[Tensor, "n r h e"], value: Float[Tensor, "n r h e"]
    ) -> Float[Tensor, "b s h e"]:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
        return dispatch_attention_fn(query, key, value, backend=self._attention_backend)

    def _attend_to_tokens(
        self, attn: WanAttention, query: Float[Tensor, "rows p h e"], tokens: Float[Tensor, "b f r d"]
    ) -> Float[Tensor, "rows p h e"]:
        assert self.gates is not None, "a path that embeds tokens has gates"
        key, value = project_context(attn, tokens.flatten(0, 1).to(query.dtype))
        gate = torch.tanh(self.gates.gates[self.layer])[:, None]
        return self._attend(query, key, value) * gate.to(query.dtype)


def rotate(
    x: Float[Tensor, "b s h e"], cosines: Float[Tensor, "n s 1 e"], sines: Float[Tensor, "n s 1 e"]
) -> Float[Tensor, "b s h e"]:
    """Each pair of neighboring channels turned by its angle, as Wan's own processor does."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([-odd, even], -1).flatten(-2)
    return (x * cosines + turned * sines).type_as(x)


def project_context(
    attn: WanAttention, tokens: Float[Tensor, "b s d"]
) -> tuple[Float[Tensor, "b s h e"], Float[Tensor, "b s h e"]]:
    """Keys and values of the context tokens in one block."""
    key = attn.norm_k(attn.to_k(tokens)).unflatten(2, (attn.heads, -1))
    return key, attn.to_v(tokens).unflatten(2, (attn.heads, -1))


def single_token_attention(attn: WanAttention, token: Float[Tensor, "b 1 d"]) -> Float[Tensor, "b 1 d"]:
    """Attention output for a single context token: the softmax over one key is 1 for every query."""
    output: Tensor = attn.to_out[0](attn.to_v(token))
    return output
