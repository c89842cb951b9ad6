"""The smallest context model, for tests."""

from dataclasses import replace

import torch

from worldmodel.context_module.models.context_model import ContextModel, ContextModelConfig
from worldmodel.context_module.models.context_module import ContextModuleConfig
from worldmodel.context_module.models.hosts import HostConfig
from worldmodel.context_module.models.light_vae import LightVaeConfig

LIGHT = LightVaeConfig(image_size=16, channels=(8, 8), hidden=16, latent_dim=12, norm="batch")


def tiny_context_model(variant: str = "context", **changes: object) -> ContextModel:
    """Three concepts, pictures of 16x16; `changes` are fields of its config."""
    torch.manual_seed(0)
    module = ContextModuleConfig(num_concepts=3, in_width=4, out_width=2)
    config = ContextModelConfig(variant, False, HostConfig("light_vae", light_vae=LIGHT), module)  # type: ignore[arg-type]
    return ContextModel(replace(config, **changes))  # type: ignore[arg-type]
