"""Gradient checkpointing of the submodules that support it: less memory, one more forward pass."""

from torch import nn


def checkpoint_blocks(model: nn.Module) -> list[str]:
    """Enable it in every trained submodule that supports it; returns the names of their classes."""
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
