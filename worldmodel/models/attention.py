"""Attention of Wan blocks whose tokens are laid out frame by frame, [(b f) p d] instead of [b (f p) d].

In this layout Wan's own block code applies one modulation per latent frame by broadcasting, where its per-
token modulation would be written out for every token. Only attention has to know that the frames of a sample
belong together.
"""

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import WanAttention, WanAttnProcessor
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.actions.interface import ActionEmbedding, FrameCondition
from worldmodel.models.attention_mask import RotaryTables


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
    Action tokens go through the same projections and enter with a gate that starts at zero. Action maps are
    added in the first block.
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer

    def __call__(
        self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None
    ) -> Tensor:
        """See WanAttnProcessor; the context is a `FrameCondition`."""
        output = self._cross_attend(attn, hidden_states, encoder_hidden_states)
        maps = encoder_hidden_states.actions.maps
        return output if maps is None or self.layer else output + maps.flatten(0, 1).to(output.dtype)

    def _cross_attend(self, attn: WanAttention, hidden_states: Tensor, condition: FrameCondition) -> Tensor:
        text = condition.text
        if text.tokens.shape[1] == 1 and condition.actions.tokens is None:
            output = text.outputs[self.layer] if text.outputs else single_token_attention(attn, text.tokens)
            return output.repeat_interleave(len(hidden_states) // len(output), 0)
        query = attn.norm_q(attn.to_q(hidden_states)).unflatten(2, (attn.heads, -1))
        if text.keys:
            key, value = text.keys[self.layer], text.values[self.layer]
        else:
            key, value = project_context(attn, text.tokens)
        num_samples = condition.actions.frames.shape[0]
        whole = query.unflatten(0, (num_samples, -1)).flatten(1, 2)
        attended = self._attend(whole, key, value).reshape(query.shape)
        if condition.actions.tokens is not None:
            attended = attended + self._attend_actions(attn, query, condition.actions)
        return attn.to_out[1](attn.to_out[0](attended.flatten(2, 3).type_as(query)))

    def _attend(
        self, query: Float[Tensor, "b s h e"], key: Float[Tensor, "n r h e"], value: Float[Tensor, "n r h e"]
    ) -> Float[Tensor, "b s h e"]:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
        return dispatch_attention_fn(query, key, value, backend=self._attention_backend)

    def _attend_actions(
        self, attn: WanAttention, query: Float[Tensor, "rows p h e"], actions: ActionEmbedding
    ) -> Float[Tensor, "rows p h e"]:
        assert actions.tokens is not None
        assert actions.gates is not None
        key, value = project_context(attn, actions.tokens.flatten(0, 1).to(query.dtype))
        gate = torch.tanh(actions.gates[self.layer])[:, None]
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
    """What every query gets from one context token: a softmax over one key is 1, whatever was asked."""
    output: Tensor = attn.to_out[0](attn.to_v(token))
    return output
