"""Forward dynamics: Wan turns noisy latents, noise levels and action embeddings into a velocity."""

from dataclasses import dataclass

from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanRotaryPosEmbed,
    WanTransformer3DModel,
)
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.desk.small_net import SmallNet
from worldmodel.diffusion.flow import TIMESTEPS, clean_from_velocity, velocity_from_clean
from worldmodel.models.actions.protocol import ActionEmbedding, GatedTokens
from worldmodel.models.attention import (
    ConditionAttnProcessor,
    FrameConditionEmbedder,
    FrameModulation,
    NetworkCall,
    TextContext,
    VideoAttnProcessor,
    current_call,
    network_call,
    project_context,
    single_token_attention,
)
from worldmodel.models.attention_mask import AttentionView, RotaryTables, causal_view, position_tables


@dataclass(frozen=True)
class FdmOutput:
    """The network's output in both forms; `diffusion/flow.py` converts between them."""

    velocity: Float[Tensor, "b c f h w"]
    clean: Float[Tensor, "b c f h w"]


class FramePatchEmbedding(nn.Conv3d):
    """Wan's `patch_embedding` (the same parameters under the same names), frame by frame.

    Adds the scene embedding and what the action paths embed for each place, if there are any.
    """

    def __init__(self, base: nn.Conv3d, small: SmallNet | None) -> None:
        kernel, stride = base.kernel_size, base.stride
        super().__init__(base.in_channels, base.out_channels, kernel, stride, device="meta")  # type: ignore[arg-type]
        self.weight, self.bias = base.weight, base.bias
        # In a tuple, as another module owns it: it is no part of the backbone.
        self._small = (small,)

    def forward(self, latents: Float[Tensor, "b c f h w"]) -> Float[Tensor, "bf d 1 y x"]:
        """Embedded patches of each latent frame."""
        call = current_call()
        assert call is not None, "the backbone is called through ForwardDynamics"
        (small,), output = self._small, super().forward(latents)
        if small is not None and small.scene is not None:
            output = output + small.scene(latents, call.view).to(output.dtype)
        output = rearrange(output, "b d f y x -> (b f) d 1 y x")
        if call.actions.places is None:
            return output
        places = rearrange(call.actions.places, "b f (y x) d -> (b f) d 1 y x", y=output.shape[3])
        return output + places.to(output.dtype)


class CachedRotary(nn.Module):
    """Wan's rotary tables, computed once for each latent grid and device."""

    def __init__(self, base: WanRotaryPosEmbed) -> None:
        super().__init__()
        self.base = base
        self._tables: dict[tuple[object, ...], RotaryTables] = {}

    def forward(self, latents: Float[Tensor, "b c f h w"]) -> RotaryTables:
        """Cosines and sines of every token, and what it may see."""
        call = current_call()
        view = None if call is None else call.view
        num_positions = latents.shape[2] if view is None else view.num_positions
        key = (num_positions, latents.shape[3:], self.base.freqs_cos.device)
        if key not in self._tables:
            one = latents[:, :, :1].expand(-1, -1, num_positions, -1, -1)
            self._tables = {key: RotaryTables(*self.base(one))}
        tables = self._tables[key]
        return (
            tables
            if view is None
            else position_tables(tables, view, tables.cosines.shape[1] // num_positions)
        )


class ForwardDynamics(nn.Module):
    """A Wan backbone with conditions per latent frame.

    Weights, files and parameter names are those of diffusers. At run time five things are replaced or added:

    1. `backbone.rope`: the same rotary tables, made once per latent grid (`CachedRotary`).
    2. `backbone.condition_embedder`: timesteps, actions and prompt become one modulation per latent frame
       instead of one per token (`FrameConditionEmbedder`).
    3. `backbone.patch_embedding`: the same convolution, which adds the scene embedding and what action paths
       embed for each place, and lays the patches out frame by frame (`FramePatchEmbedding`).
    4. the processor of every `attn1`: joins the frames again for self-attention (`VideoAttnProcessor`), in a
       causal backbone each with those before it only.
    5. the processor of every `attn2`: cross-attention to the prompt or to what stands in its place, with a
       shortcut for a prompt of one token, and to action tokens (`ConditionAttnProcessor`).

    All conditions travel as one `NetworkCall`. After this the backbone is called through this class only.
    """

    def __init__(
        self,
        backbone: WanTransformer3DModel,
        small: SmallNet | None = None,
        gates: GatedTokens | None = None,
        *,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.small = backbone, small
        self.causal = causal
        backbone.rope = CachedRotary(backbone.rope)  # type: ignore[assignment]
        backbone.condition_embedder = FrameConditionEmbedder(backbone.condition_embedder)
        backbone.patch_embedding = FramePatchEmbedding(backbone.patch_embedding, small)
        for layer, block in enumerate(backbone.blocks):
            _attention(block.attn1).set_processor(VideoAttnProcessor(layer))  # type: ignore[arg-type]
            _attention(block.attn2).set_processor(ConditionAttnProcessor(layer, gates))  # type: ignore[arg-type]

    @property
    def width(self) -> int:
        """Channels of a token, d."""
        shape = self.backbone.config
        return int(shape["num_attention_heads"] * shape["attention_head_dim"])

    def forward(
        self,
        noisy: Float[Tensor, "b c f h w"],
        sigma: Float[Tensor, "b f"],
        actions: ActionEmbedding,
        text: TextContext,
        modulation: FrameModulation | None = None,
        view: AttentionView | None = None,
    ) -> FdmOutput:
        """Velocity and clean estimate of the noisy latents; sigma 0 marks a frame as given.

        `modulation` is what `modulate` made of the same sigma and actions; none: made now. `view` says what
        the frames see of each other; none: all of it, or in a causal model what is not later.
        """
        if view is None and self.causal:
            view = causal_view(noisy.shape[2], noisy.device)
        with network_call(NetworkCall(actions, text, modulation, view)):
            (answer,) = self.backbone(
                # The backbone's own dtype property walks through all modules, which a small one feels.
                hidden_states=noisy.to(self.backbone.patch_embedding.weight.dtype),
                timestep=TIMESTEPS * sigma.flatten(),
                encoder_hidden_states=text.tokens,
                return_dict=False,
            )
        answer = answer.to(noisy.dtype)
        stream = None if view is None else view.stream
        if stream is not None:  # the other frames are known already
            answer, noisy, sigma = answer[:, :, -1:], noisy[:, :, -1:], sigma[:, -1:]
        if self.small is None or not self.small.predicts_clean:
            return FdmOutput(velocity=answer, clean=clean_from_velocity(noisy, answer, sigma))
        clean = self.small.clean(answer, noisy, sigma, actions.maps, stream)
        return FdmOutput(velocity=velocity_from_clean(noisy, clean, sigma), clean=clean)

    def tokens_per_frame(self, grid: tuple[int, int, int]) -> int:
        """How many tokens a latent frame of this grid has."""
        _, high, wide = self.backbone.config["patch_size"]
        return int(grid[1] // high * (grid[2] // wide))

    def modulate(
        self, sigmas: Float[Tensor, "steps b f"], actions: ActionEmbedding, text: TextContext
    ) -> list[FrameModulation]:
        """The modulation of every step of a schedule, all at once (sampling)."""
        embedder = self.backbone.condition_embedder
        assert isinstance(embedder, FrameConditionEmbedder), type(embedder)
        return embedder.modulate(TIMESTEPS * sigmas.flatten(1), actions, text.tokens).unbind()

    def embed_text(self, text: Float[Tensor, "b s e"], *, with_keys: bool = False) -> TextContext:
        """Project a prompt once; `with_keys` also prepares its keys and values for every block (sampling)."""
        embedder = self.backbone.condition_embedder.text_embedder
        tokens = embedder(text.to(next(embedder.parameters()).dtype))
        if not with_keys:
            return TextContext(tokens)
        layers = [_attention(block.attn2) for block in self.backbone.blocks]
        keys, values = zip(*(project_context(layer, tokens) for layer in layers), strict=True)
        outputs = (
            tuple(single_token_attention(layer, tokens) for layer in layers) if tokens.shape[1] == 1 else ()
        )
        return TextContext(tokens, keys, values, outputs)

    def freeze_unused_query_key(self) -> None:
        """Freeze queries and keys of cross-attention, which have no effect on a single context token.

        Parameters that never get a gradient must not ask for one: distributed training would wait for it.
        """
        for block in self.backbone.blocks:
            layer = _attention(block.attn2)
            for module in (block.norm2, layer.to_q, layer.norm_q, layer.to_k, layer.norm_k):
                module.requires_grad_(False)


def _attention(module: Tensor | nn.Module) -> WanAttention:
    assert isinstance(module, WanAttention), type(module)
    return module
