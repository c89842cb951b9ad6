"""Attention maps of concept tokens."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.attention_processor import Attention
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.models.unet import ConceptUNet


@torch.no_grad()
def concept_attention(
    model: MDDiff, images: UInt8[Tensor, "n 3 H W"], *, steps: Sequence[int] = (100, 300, 500), seed: int = 0
) -> dict[int, Float[Tensor, "n k side side"]]:
    """Attention of every position to each concept (sums to 1 over concepts), by side of the feature map.

    Averaged over heads, over the layers of that size and over these time steps of the noised images.
    """
    pixels = model.pixels(images)
    latents = model.latents_of(pixels)
    tokens = model.tokens(model.encoder(pixels))
    rng = torch.Generator().manual_seed(seed)
    with recorded_attention(model.unet) as records:
        for step in steps:
            times = torch.full((len(images),), step, device=latents.device)
            noise = torch.randn(latents.shape[1:], generator=rng).to(latents).expand_as(latents)
            noisy = model.scheduler.add_noise(latents, noise, times)  # type: ignore[arg-type]
            model.unet(noisy, times, tokens)
    by_side: dict[int, list[Tensor]] = defaultdict(list)
    for record in records:
        side = math.isqrt(record.shape[1])
        by_side[side].append(record.movedim(1, 2).unflatten(2, (side, side)))
    return {side: torch.stack(maps).mean(0) for side, maps in sorted(by_side.items())}


@contextmanager
def recorded_attention(unet: ConceptUNet) -> Iterator[list[Tensor]]:
    """Record every cross-attention inside this block: [n positions k], mean over heads, in layer order."""
    records: list[Tensor] = []

    def record(layer: Attention, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        queries = layer.head_to_batch_dim(layer.to_q(args[0]))
        keys = layer.head_to_batch_dim(layer.to_k(kwargs["encoder_hidden_states"]))
        weights = layer.get_attention_scores(queries, keys)
        records.append(weights.unflatten(0, (-1, layer.heads)).mean(1))

    hooks = [
        module.register_forward_pre_hook(record, with_kwargs=True)
        for name, module in unet.named_modules()
        if name.endswith("attn2")
    ]
    try:
        yield records
    finally:
        for hook in hooks:
            hook.remove()
