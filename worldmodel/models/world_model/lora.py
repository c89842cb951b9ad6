"""Low-rank adapters on the backbone's attention and feed-forward layers; all around them trains fully."""

from dataclasses import dataclass

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from peft import LoraConfig as PeftConfig
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from worldmodel.checked import check_ranges

TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
ADAPTER = "default"


@dataclass(frozen=True)
class LoraConfig:
    """Rank 0 trains the whole backbone instead."""

    rank: int = 0  # of every adapter; 0 = no adapters
    alpha: int = 32  # adapters are scaled by alpha / rank
    dropout: float = 0.0  # on the adapters' input
    seed: int = 0  # of the adapters' random half

    def __post_init__(self) -> None:
        check_ranges(self, rank=(0, 4096), alpha=(0, 1 << 16), dropout=(0, 0.99))

    def continues(self, saved: "LoraConfig") -> bool:
        """Whether saved adapters can be these: the same rank and scale."""
        return self.rank > 0 and (self.rank, self.alpha) == (saved.rank, saved.alpha)


def add_lora(backbone: WanTransformer3DModel, config: LoraConfig) -> None:
    """Freeze the backbone and put trainable adapters, which change nothing yet, on its blocks."""
    backbone.requires_grad_(False)
    peft_config = PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(TARGETS),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        backbone.add_adapter(peft_config, adapter_name=ADAPTER)
    for parameter in backbone.parameters():
        if parameter.requires_grad:
            # Adapters train in fp32 whatever the frozen weights are stored in.
            parameter.data = parameter.data.float()


def lora_state(backbone: WanTransformer3DModel) -> dict[str, Tensor]:
    """The adapters alone."""
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
