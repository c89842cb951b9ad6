"""Cross-attention of a Wan block to the prompt and, in models that have them, to action tokens."""

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import WanAttention, WanAttnProcessor
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.action_interface import ActionEmbedding, FrameCondition


class ConditionAttnProcessor(WanAttnProcessor):
    """Wan's attention processor, except that the context may be a `FrameCondition`.

    A prompt shared by the batch is projected to keys and values once, not once per sample; while sampling
    they come ready from the `TextContext`. Action tokens are attended by the patches of their own latent
    frame only, through the same projections, and enter with a gate that starts at zero.
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer

    def __call__(
        self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None
    ) -> Tensor:
        """See WanAttnProcessor."""
        condition = encoder_hidden_states
        if not isinstance(condition, FrameCondition):
            return super().__call__(attn, hidden_states, condition, attention_mask, rotary_emb)
        query = attn.norm_q(attn.to_q(hidden_states)).unflatten(2, (attn.heads, -1))
        if condition.text.keys:
            key, value = condition.text.keys[self.layer], condition.text.values[self.layer]
        else:
            key, value = project_context(attn, condition.text.tokens)
        attended = self._attend(query, key, value)
        if condition.actions.tokens is not None:
            attended = attended + self._attend_actions(attn, query, condition.actions)
        return attn.to_out[1](attn.to_out[0](attended.flatten(2, 3).type_as(query)))

    def _attend(
        self, query: Float[Tensor, "b s h e"], key: Float[Tensor, "n r h e"], value: Float[Tensor, "n r h e"]
    ) -> Float[Tensor, "b s h e"]:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
        return dispatch_attention_fn(query, key, value, backend=self._attention_backend)

    def _attend_actions(
        self, attn: WanAttention, query: Float[Tensor, "b s h e"], actions: ActionEmbedding
    ) -> Float[Tensor, "b s h e"]:
        assert actions.tokens is not None
        assert actions.gates is not None
        frames = actions.tokens.shape[1]
        key, value = project_context(attn, actions.tokens.flatten(0, 1).to(query.dtype))
        query = rearrange(query, "b (f p) h e -> (b f) p h e", f=frames)
        attended = rearrange(self._attend(query, key, value), "(b f) p h e -> b (f p) h e", f=frames)
        return attended * torch.tanh(actions.gates[self.layer])[:, None].to(attended.dtype)


def project_context(
    attn: WanAttention, tokens: Float[Tensor, "b s d"]
) -> tuple[Float[Tensor, "b s h e"], Float[Tensor, "b s h e"]]:
    """Keys and values of the context tokens in one block."""
    key = attn.norm_k(attn.to_k(tokens)).unflatten(2, (attn.heads, -1))
    return key, attn.to_v(tokens).unflatten(2, (attn.heads, -1))
