"""Files of LoRA adapters that diffusers and peft load as well, and published ones that we load.

Names are those of `WanPipeline.save_lora_weights`: `transformer.` before the name of the module. Rank, alpha
and places are in the file's metadata, without which other programs take alpha = rank.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY
from diffusers.loaders.lora_pipeline import WanLoraLoaderMixin
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from peft import get_peft_model_state_dict
from safetensors import safe_open
from torch import Tensor

from worldmodel.checked import parse_json
from worldmodel.files import read_tensors, write_tensors
from worldmodel.models.backbone import ADAPTER, load_wan, lora_state, merge_lora
from worldmodel.models.config import WorldModelConfig

V = TypeVar("V")
PREFIX = "transformer."
KNOWN = ("r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora")


def write_lora(path: Path, backbone: WanTransformer3DModel) -> None:
    """The adapters alone, as `WanPipeline.load_lora_weights(path)` reads them."""
    config, state = backbone.peft_config[ADAPTER], lora_state(backbone)
    places = sorted({name.rpartition(".lora_")[0] for name in state})
    values = {"r": config.r, "lora_alpha": config.lora_alpha, "target_modules": places}
    named = {PREFIX + key: value for key, value in values.items()}
    metadata = {LORA_ADAPTER_METADATA_KEY: json.dumps(named, sort_keys=True)}  # one entry: order is random
    write_tensors(path, {PREFIX + key: value for key, value in state.items()}, metadata)


def without_prefix(state: Mapping[str, V]) -> dict[str, V]:
    """Names as the backbone has them."""
    return {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}


def start_backbone(config: WorldModelConfig, dtype: torch.dtype) -> WanTransformer3DModel:
    """What a new model begins with, `lora.start` included."""
    backbone = load_wan(config.pretrained or config.backbone, dtype)
    if config.lora.start:
        fold_lora(backbone, Path(config.lora.start))
    return backbone


def fold_lora(backbone: WanTransformer3DModel, path: Path) -> None:
    """Add published adapters for Wan (of diffusers, peft, ComfyUI, musubi or kohya) to a backbone's weights.

    All of their tensors must find their place in this backbone.
    """
    tensors = read_tensors(path)
    named: dict[str, Tensor] = {}
    try:
        state: Any = WanLoraLoaderMixin.lora_state_dict(dict(tensors))
        named = {name if name.startswith(PREFIX) else PREFIX + name: value for name, value in state.items()}
        backbone.load_lora_adapter(named, adapter_name=ADAPTER, metadata=_metadata(path))
        placed = get_peft_model_state_dict(backbone, adapter_name=ADAPTER)
    except (ValueError, KeyError, RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: not a LoRA of this Wan ({str(error)[:300]})") from error
    if left := sorted(set(without_prefix(named)) ^ set(placed)):
        raise ValueError(f"{path}: not a LoRA of this Wan: {len(left)} tensors have no place, as {left[0]}")
    requires_grad = next(backbone.parameters()).requires_grad
    merge_lora(backbone)
    backbone.requires_grad_(requires_grad)


def _metadata(path: Path) -> dict[str, Any] | None:
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(LORA_ADAPTER_METADATA_KEY)
    values = parse_json(text, f"{path}: {LORA_ADAPTER_METADATA_KEY}") if text else None
    if not isinstance(values, dict):
        return None
    return {key: value for key, value in values.items() if key.removeprefix(PREFIX) in KNOWN}
