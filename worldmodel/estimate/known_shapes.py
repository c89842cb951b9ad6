"""Shapes of weights that a config only names: from a local config.json, or a table of hub ids."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from worldmodel.checked import read_json
from worldmodel.models.backbone import PROMPT_KEY, TEXT_TOKENS, WAN_1_3B, WAN_5B, WanConfig
from worldmodel.models.config import WorldModelConfig
from worldmodel.models.idm import IdmConfig

WAN_VAE_LAYOUT = (16, 8)  # latent channels, pixels per latent and side
# Backbones by hub id, and the autoencoder of the second generation.
WAN_SHAPES = {
    WAN_1_3B: WanConfig(),
    WAN_5B: WanConfig(num_heads=24, ffn_dim=14336, latent_channels=48),
}
WAN_5B_VAE = {
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}
# Image encoders by hub id: width, layers, heads, pixels per token.
DINOV2_SHAPES = {
    "facebook/dinov2-small": (384, 12, 6, 14),
    "facebook/dinov2-base": (768, 12, 12, 14),
    "facebook/dinov2-large": (1024, 24, 16, 14),
}


def num_text_tokens(config: WorldModelConfig) -> int:
    """Length of the cached prompt; a file that does not exist yet counts as Wan's padded prompt."""
    if not config.prompt:
        return 1
    if not Path(config.prompt).is_file():
        return TEXT_TOKENS
    with safe_open(config.prompt, framework="pt") as file:
        return int(file.get_slice(PROMPT_KEY).get_shape()[1])


def with_known_shapes(config: WorldModelConfig) -> WorldModelConfig:
    """Replace named weights by their shapes, from a local folder or a table of hub ids."""
    if config.pretrained:
        config = replace(config, backbone=_backbone_shape(config.pretrained), pretrained="")
    if config.idm.pretrained:
        config = replace(config, idm=_encoder_shape(config.idm))
    return config


def _backbone_shape(source: str) -> WanConfig:
    shape = local_config(source, "transformer")
    if shape is None:
        if source not in WAN_SHAPES:
            raise ValueError(f"{source}: shapes are known of local folders and of {', '.join(WAN_SHAPES)}")
        return WAN_SHAPES[source]
    return WanConfig(
        num_layers=shape["num_layers"],
        num_heads=shape["num_attention_heads"],
        head_dim=shape["attention_head_dim"],
        ffn_dim=shape["ffn_dim"],
        patch_size=tuple(shape["patch_size"]),
        latent_channels=shape["in_channels"],
        text_dim=shape["text_dim"],
        freq_dim=shape["freq_dim"],
    )


def _encoder_shape(config: IdmConfig) -> IdmConfig:
    shape = local_config(config.pretrained, "")
    if shape is not None:
        keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size")
        width, layers, heads, patch = (shape[key] for key in keys)
    elif config.pretrained in DINOV2_SHAPES:
        width, layers, heads, patch = DINOV2_SHAPES[config.pretrained]
    else:
        raise ValueError(
            f"{config.pretrained}: shapes are known of local folders and of {list(DINOV2_SHAPES)}"
        )
    # A new Dinov2 needs square pictures: use one with as many patches.
    side = math.ceil(math.sqrt(config.image_height * config.image_width) / patch) * patch
    return replace(
        config,
        pretrained="",
        image_height=side,
        image_width=side,
        patch_size=patch,
        encoder_width=width,
        encoder_layers=layers,
        encoder_heads=heads,
    )


def local_config(source: str, part: str) -> dict[str, Any] | None:
    """The config.json of a component in a local model folder; None if there is no such folder."""
    for path in (Path(source) / part / "config.json", Path(source) / "config.json"):
        if path.is_file():
            return read_json(path)
    return None


def known_vae(source: str) -> dict[str, Any]:
    """Settings of an autoencoder listed by hub id; empty: those of Wan 2.1."""
    return WAN_5B_VAE if source == WAN_5B else {}


def latent_layout(vae: str) -> tuple[int, int]:
    """Latent channels and pixels per latent of an autoencoder; an unlisted hub id counts as Wan's."""
    config = local_config(vae, "vae") or known_vae(vae) if vae else None
    if not config:
        return WAN_VAE_LAYOUT
    return config["z_dim"], config.get("scale_factor_spatial", WAN_VAE_LAYOUT[1])
