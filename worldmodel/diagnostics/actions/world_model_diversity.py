"""GMD contrasts of a world model's action channel: do actions reshape what the network makes of noise?

The generator is one call of the network at sigma 1: noise latents of the future frames -> clean latents, with
the history clean and no autoencoder. It runs on a copy in double precision, since the contrasts are third
derivatives. Axes: k action sequences, n transitions, a action size.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.overrides import TorchFunctionMode

from worldmodel.diagnostics.actions.action_channel import VideoGenerator, action_diversity
from worldmodel.diagnostics.actions.world_model_channel import (
    ClipView,
    driven,
    past_and_ahead,
    recent_frames,
)
from worldmodel.diagnostics.mechanisms.mechanism_diversity import (
    FirstOrderDiversity,
    MechanismDiversity,
    first_order_diversity,
)
from worldmodel.diffusion.flow import sigma_per_frame
from worldmodel.mcl.config import FULL_STEP, HALF_STEP
from worldmodel.mcl.features import math_attention
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.attention import TextContext
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.whole_clip import embed_clip
from worldmodel.types import map_tensors

MAX_PARAMETERS = 100_000_000  # of the backbone; third derivatives of a larger one take too long for a page

OFFSET = 0.5  # standard deviation of the offsets, in units of normalized action


def world_model_diversity(
    model: WorldModel,
    frames: UInt8[Tensor, "1 t 3 H W"] | Float[Tensor, "1 t 3 H W"],
    noise: Float[Tensor, "1 c f h w"],
    robot_actions: Float[Tensor, "k n a"],
    *,
    num_directions: int = 2,
    num_points: int = 1,
    seed: int = 0,
    view: ClipView | None = None,
) -> MechanismDiversity:
    """Contrast k action sequences that follow the same frames, along random directions of the noise."""
    if is_too_large(model):
        raise ValueError(
            f"the backbone has {num_backbone_parameters(model) / 1e6:.0f} million parameters, third "
            f"derivatives are taken up to {MAX_PARAMETERS / 1e6:.0f} million: see first_order_estimate"
        )
    choices = torch.eye(len(robot_actions), dtype=torch.float64, device=model.device).unsqueeze(1)
    with math_attention(), _KeepDouble():
        return action_diversity(
            latent_channel(model, frames, robot_actions, view),
            noise.to(choices),
            choices,
            num_directions=num_directions,
            num_points=num_points,
            seed=seed,
        )


@torch.no_grad()
def first_order_estimate(
    model: WorldModel,
    frames: UInt8[Tensor, "1 t 3 H W"] | Float[Tensor, "1 t 3 H W"],
    noise: Float[Tensor, "1 c f h w"],
    robot_actions: Float[Tensor, "k n a"],
    *,
    num_directions: int = 4,
    seed: int = 0,
    view: ClipView | None = None,
) -> FirstOrderDiversity:
    """How much actions change the network's response to small changes of the noise; see `action_diversity`.

    The change of the output for a small step of the noise is measured by finite differences, for
    `num_directions` random steps and each of the k action sequences, in the model's own precision.
    """
    choices = torch.eye(len(robot_actions), device=model.device).unsqueeze(1)
    source = torch.Generator().manual_seed(seed)
    directions = torch.randn(num_directions, *noise.shape[1:], generator=source).to(choices)
    is_half = model.fdm.backbone.patch_embedding.weight.dtype == torch.bfloat16
    return first_order_diversity(
        latent_channel(model, frames, robot_actions, view, is_double=False),
        noise[0].to(choices),
        choices,
        directions,
        step=HALF_STEP if is_half else FULL_STEP,
    )


def is_too_large(model: WorldModel) -> bool:
    """Whether third derivatives of the model take too long."""
    return num_backbone_parameters(model) > MAX_PARAMETERS


def nearby_actions(
    actions: Float[Tensor, "1 n a"], dimensions: Sequence[int], count: int, *, seed: int = 0
) -> Float[Tensor, "k n a"]:
    """The sequence itself, and `count` others with a random offset of these dimensions held throughout."""
    rng = torch.Generator().manual_seed(seed)
    offsets = actions.new_zeros(count, 1, actions.shape[2])
    offsets[:, 0, list(dimensions)] = (OFFSET * torch.randn(count, len(dimensions), generator=rng)).to(
        actions
    )
    return torch.cat([actions, actions + offsets])


def num_backbone_parameters(model: WorldModel) -> int:
    """Size of the network that would be differentiated."""
    return sum(parameter.numel() for parameter in model.fdm.parameters())


@torch.no_grad()
def latent_channel(
    model: WorldModel,
    frames: UInt8[Tensor, "1 t 3 H W"] | Float[Tensor, "1 t 3 H W"],
    robot_actions: Float[Tensor, "k n a"],
    view: ClipView | None = None,
    *,
    is_double: bool = True,
) -> VideoGenerator:
    """(noise[b c f h w], choice[b 1 k]) -> clean latents of the future frames, differentiable in the noise.

    A choice is a one-hot row that names one of the action sequences: they are embedded once, as in a rollout.
    """
    recent = recent_frames(model, frames)
    history = model.encode(recent).to(torch.float64 if is_double else torch.float32)
    many = recent.expand(len(robot_actions), *recent.shape[1:])
    told = driven(model, robot_actions, view)
    actions, _ = embed_clip(model, many, *past_and_ahead(model, told, frames.shape[1]))
    network, text, num_history = model.fdm, model.text_context(), history.shape[2]
    if is_double:
        network = deepcopy(model.fdm).double().requires_grad_(False)
        text = TextContext(text.tokens.double())
    # Fills the cache of rotary tables: made inside a transform of torch.func, they could not be used again.
    network.backbone.rope(history.new_zeros(1, history.shape[1], *model.contract.latent_grid))

    def generate(noise: Tensor, choice: Tensor) -> Tensor:
        past = history.expand(len(noise), *history.shape[1:])
        sigma = sigma_per_frame(noise.new_ones(len(noise)), noise.shape[2], num_history=num_history)
        noisy = torch.cat([past, noise[:, :, num_history:]], 2)
        return network(noisy, sigma, _chosen(actions, choice[:, 0]), text).clean[:, :, num_history:]

    return generate


def _chosen(actions: ActionEmbedding, choice: Float[Tensor, "b k"]) -> ActionEmbedding:
    chosen: ActionEmbedding = map_tensors(
        actions, lambda part: torch.tensordot(choice, part.to(choice), dims=1)
    )
    return chosen


class _KeepDouble(TorchFunctionMode):
    """Leaves double tensors as they are where Wan asks for float32, which for it is the more precise type."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))
