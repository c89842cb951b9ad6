"""The backbone and the video autoencoder: diffusers models, built or loaded here with their own code.

`ForwardDynamics` lists what it replaces of the backbone at run time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from jaxtyping import Float
from peft import LoraConfig as PeftConfig
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import UMT5EncoderModel

from worldmodel.checked import check_ranges
from worldmodel.files import read_tensors
from worldmodel.hub import find_part, load_encoder, load_part

WAN_1_3B = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
WAN_5B = "Wan-AI/Wan2.2-TI2V-5B-Diffusers"  # 48 latent channels, 16x16 pixels a latent
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT_KEY = "text"  # of a cached prompt embedding in its file
MAX_PROMPT = 4096  # tokens
TEXT_TOKENS = 512  # Wan pads its prompts with zeros to this length
END_OF_TEXT = 1  # the only token of an empty prompt in Wan's tokenizer


@dataclass(frozen=True)
class WanConfig:
    """Shape of a randomly initialized Wan; the default is the 1.3B model (1,418,996,800 in all)."""

    num_layers: int = 30  # transformer blocks
    num_heads: int = 12  # attention heads
    head_dim: int = 128  # channels per head; width = num_heads * head_dim
    ffn_dim: int = 8960  # hidden channels of the feed-forward layers
    patch_size: tuple[int, int, int] = (1, 2, 2)  # latent frames, height, width per token
    latent_channels: int = 16  # channels of the autoencoder's latents
    text_dim: int = 4096  # channels of the text encoder
    freq_dim: int = 256  # sinusoidal features of the timestep
    zero_output: bool = False  # start from a zero output projection, for training from scratch
    seed: int = 0  # of the random weights

    def __post_init__(self) -> None:
        check_ranges(
            self,
            num_layers=(1, 256),
            num_heads=(1, 512),
            head_dim=(2, 1024),
            ffn_dim=(1, 1 << 18),
            patch_size=(1, 64),
            latent_channels=(1, 4096),
            text_dim=(1, 1 << 16),
            freq_dim=(2, 1 << 14),
        )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even (positions turn pairs of channels), got {self.head_dim}")
        if self.patch_size[0] != 1:
            raise ValueError(
                f"patch_size[0] must be 1 (actions address latent frames), got {self.patch_size[0]}"
            )


def build_wan(config: WanConfig, dtype: torch.dtype = torch.float32) -> WanTransformer3DModel:
    """A backbone with random weights, the same for the same seed whatever was drawn before."""
    with torch.random.fork_rng(devices=[]), _default_dtype(dtype):
        torch.manual_seed(config.seed)
        backbone = WanTransformer3DModel(
            patch_size=config.patch_size,
            num_attention_heads=config.num_heads,
            attention_head_dim=config.head_dim,
            in_channels=config.latent_channels,
            out_channels=config.latent_channels,
            text_dim=config.text_dim,
            freq_dim=config.freq_dim,
            ffn_dim=config.ffn_dim,
            num_layers=config.num_layers,
        )
    if config.zero_output:
        for parameter in backbone.get_submodule("proj_out").parameters():
            nn.init.zeros_(parameter)
    # As from_pretrained does: Wan's norms, tables and time embedder stay in fp32.
    for name, parameter in backbone.named_parameters():
        if any(part in backbone._keep_in_fp32_modules for part in name.split(".")):
            parameter.data = parameter.data.float()
    return backbone


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Build in the wanted type: 1.4 billion weights in fp32 first would double the peak memory."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def load_wan(source: str | WanConfig, dtype: torch.dtype = torch.float32) -> WanTransformer3DModel:
    """A backbone from a shape, a hub id, or a folder that holds a pipeline or the transformer alone."""
    if isinstance(source, WanConfig):
        return build_wan(source, dtype)
    backbone = load_part(WanTransformer3DModel, find_part(source, "transformer"), dtype)
    shape = backbone.config
    if shape.image_dim is not None or shape.in_channels != shape.out_channels:
        raise ValueError(
            f"{source}: image-to-video backbones, which see the first picture through an image encoder or as "
            f"further channels, are not supported (image_dim={shape.image_dim}, in_channels="
            f"{shape.in_channels}, out_channels={shape.out_channels}). A world model gives its first frames "
            f"as clean latents: name a backbone like {WAN_1_3B} or {WAN_5B}"
        )
    if shape.patch_size[0] != 1:
        raise ValueError(
            f"{source}: expected a Wan with one latent frame per token, got patch_size="
            f"{tuple(shape.patch_size)}"
        )
    return backbone


@torch.no_grad()
def empty_prompt_embedding(text_encoder: UMT5EncoderModel) -> Float[Tensor, "1 s d"]:
    """What Wan's pipeline feeds for an empty prompt: the end of text, encoded, and zeros up to 512 tokens."""
    tokens = torch.tensor([[END_OF_TEXT]], device=text_encoder.device)
    encoded = text_encoder(input_ids=tokens).last_hidden_state.float()
    padding = encoded.new_zeros(1, TEXT_TOKENS - 1, encoded.shape[-1])
    return torch.cat([encoded, padding], 1)


def load_empty_prompt_embedding(source: str) -> Float[Tensor, "1 s d"]:
    """Loads the text encoder of a Wan pipeline, once, for the empty prompt."""
    return empty_prompt_embedding(load_encoder(UMT5EncoderModel, source, "text_encoder"))


def read_prompt(path: Path, width: int | None = None) -> Float[Tensor, "1 s e"]:
    """Read a cached prompt embedding; `width` is the backbone's text width, if it is known."""
    text = read_tensors(path).get(PROMPT_KEY)
    if text is None or text.ndim != 3 or len(text) != 1 or not text.is_floating_point():
        raise ValueError(f"{path}: expected {PROMPT_KEY!r} of shape (1, tokens, width) in a floating type")
    if text.shape[2] != (width or text.shape[2]) or not 1 <= text.shape[1] <= MAX_PROMPT:
        raise ValueError(
            f"{path}: expected 1 to {MAX_PROMPT} tokens of width {width}, got shape {tuple(text.shape)}"
        )
    return text


TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
ADAPTER = "default"


@dataclass(frozen=True)
class LoraConfig:
    """Rank 0 trains the whole backbone instead."""

    rank: int = 0  # of every adapter; 0 = no adapters
    alpha: int = 32  # adapters are scaled by alpha / rank
    dropout: float = 0.0  # on the adapters' input
    targets: tuple[str, ...] = TARGETS  # linear layers of a block, by the end of their names
    layers: tuple[int, ...] = ()  # blocks that get adapters; empty: all
    start: str = ""  # safetensors file of a published Wan LoRA, which is folded into the backbone first
    seed: int = 0  # of the adapters' random half

    def __post_init__(self) -> None:
        check_ranges(self, rank=(0, 4096), alpha=(0, 1 << 16), dropout=(0, 0.99))

    def continues(self, saved: "LoraConfig") -> bool:
        """Whether saved adapters can be these: the same rank, scale and places."""
        mine, theirs = ((one.rank, one.alpha, *one.targets, *one.layers) for one in (self, saved))
        return self.rank > 0 and mine == theirs

    def modules(self, backbone: WanTransformer3DModel) -> list[str]:
        """Names of the linear layers that get adapters."""
        linear = [name for name, part in backbone.named_modules() if isinstance(part, nn.Linear)]
        blocks = [f"blocks.{layer}." for layer in self.layers] or ["blocks."]
        chosen = [name for name in linear if name.startswith(tuple(blocks))]
        for setting, values, ends in (("layers", blocks, False), ("targets", self.targets, True)):
            for value in values:
                if not any(name.endswith(f".{value}") if ends else name.startswith(value) for name in chosen):
                    raise ValueError(f"lora.{setting}: the backbone has no linear layer {value!r}")
        return [name for name in chosen if name.endswith(tuple(f".{target}" for target in self.targets))]


def add_lora(backbone: WanTransformer3DModel, config: LoraConfig) -> None:
    """Freeze the backbone and put trainable adapters, which change nothing yet, on its blocks."""
    backbone.requires_grad_(False)
    peft_config = PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=config.modules(backbone),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        backbone.add_adapter(peft_config, adapter_name=ADAPTER)
    for parameter in backbone.parameters():
        if parameter.requires_grad:
            # Adapters train in fp32 whatever the frozen weights are stored in.
            parameter.data = parameter.data.float()


def lora_state(backbone: WanTransformer3DModel) -> dict[str, Tensor]:
    """The LoRA weights, without those of the backbone."""
    state: dict[str, Tensor] = get_peft_model_state_dict(backbone, adapter_name=ADAPTER)
    return state


def load_lora_state(backbone: WanTransformer3DModel, state: dict[str, Tensor]) -> None:
    """Put saved adapters into a backbone that `add_lora` prepared."""
    expected, got = ({name: tuple(x.shape) for name, x in s.items()} for s in (lora_state(backbone), state))
    if expected != got:
        differing = sorted(dict(expected.items() ^ got.items()))
        raise ValueError(f"adapters do not fit the backbone: {differing[:3]} differ in shape or are missing")
    if wrong := [name for name, tensor in state.items() if not tensor.is_floating_point()]:
        raise ValueError(f"adapters do not fit the backbone: {wrong[0]} holds {state[wrong[0]].dtype}")
    set_peft_model_state_dict(backbone, state, adapter_name=ADAPTER)


def without_lora(backbone: WanTransformer3DModel) -> dict[str, Tensor]:
    """The weights under the adapters, under the names they have in a backbone that never had any."""
    state = backbone.state_dict()
    return {name.replace(".base_layer", ""): value for name, value in state.items() if ".lora_" not in name}


def merge_lora(backbone: WanTransformer3DModel) -> None:
    """Add the adapters to the weights and remove them: a plain backbone again, all of which trains."""
    backbone.fuse_lora(adapter_names=[ADAPTER])
    backbone.unload_lora()
    backbone.requires_grad_(True)


def checkpoint_blocks(model: nn.Module) -> list[str]:
    """Enable gradient checkpointing in trained submodules that support it; returns their class names."""
    switched = []
    for part in model.modules():
        if not any(parameter.requires_grad for parameter in part.parameters()):
            continue
        if getattr(part, "_supports_gradient_checkpointing", False):  # diffusers
            part.enable_gradient_checkpointing()  # type: ignore[operator]
        elif getattr(part, "supports_gradient_checkpointing", False):  # transformers
            part.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        else:
            continue
        switched.append(type(part).__name__)
    return switched
