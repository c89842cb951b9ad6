"""Mechanism critics c(x_hat, z, u) and projection heads of mechanistic contrastive learning (MCL).

A critic returns one score per row of the contrast and defines how the host's tensors are split into rows: one
row per sample for vectors and images, one row per latent frame for latent video. Activations are GELU: the
gradient of a critic with respect to z is itself trained, and a ReLU critic has zero second derivatives.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from worldmodel.types import latent_frame_actions

Linear = Callable[[int, int], nn.Module]  # (in, out) -> layer; stacked layers train several seeds at once


@runtime_checkable
class Critic(Protocol):
    """Scores how strongly the mechanism depends on z."""

    def __call__(self, x_hat: Tensor, z: Tensor, u: Tensor) -> Tensor:
        """One score per row, shaped like the condition without its last axis."""
        ...

    def rows(self, tensor: Tensor) -> Tensor:
        """A tensor shaped like z or x_hat as rows [... n d]."""
        ...

    def condition_rows(self, u: Tensor) -> Tensor:
        """A tensor shaped like u as rows [... n a]."""
        ...


class VectorCritic(nn.Module):
    """Three-layer MLP on [z, x_hat, u]; rows are samples, further leading axes are independent batches."""

    def __init__(
        self,
        latent_dim: int,
        output_dim: int,
        condition_dim: int,
        hidden_dim: int = 256,
        linear: Linear = nn.Linear,
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(
            linear(latent_dim + output_dim + condition_dim, hidden_dim),
            nn.GELU(),
            linear(hidden_dim, hidden_dim),
            nn.GELU(),
            linear(hidden_dim, 1),
        )

    def forward(
        self, x_hat: Float[Tensor, "*s n x"], z: Float[Tensor, "*s n d"], u: Float[Tensor, "*s n a"]
    ) -> Float[Tensor, "*s n"]:
        scores: Tensor = self.net(torch.cat([z, x_hat, u], dim=-1)).squeeze(-1)
        return scores

    def rows(self, tensor: Float[Tensor, "*s n d"]) -> Float[Tensor, "*s n d"]:
        return tensor

    def condition_rows(self, u: Shaped[Tensor, "*s n a"]) -> Shaped[Tensor, "*s n a"]:
        return u


class ImageCritic(nn.Module):
    """Convolutional branch on x_hat plus linear branches on the flattened z and on u; rows are samples."""

    def __init__(
        self, image_channels: int, latent_dim: int, condition_dim: int, hidden_dim: int = 256
    ) -> None:
        super().__init__()
        # The paper pads the 128 features with zeros to the hidden width; a linear map contains that.
        self.image = _frame_encoder(image_channels, hidden_dim)
        self.latent = nn.Linear(latent_dim, hidden_dim)
        self.condition = nn.Linear(condition_dim, hidden_dim)
        self.score = nn.Sequential(nn.GELU(), nn.Linear(hidden_dim, 1))

    def forward(
        self, x_hat: Float[Tensor, "b c H W"], z: Float[Tensor, "b ..."], u: Float[Tensor, "b a"]
    ) -> Float[Tensor, " b"]:
        features = self.image(x_hat) + self.latent(z.flatten(1)) + self.condition(u)
        scores: Tensor = self.score(features).squeeze(-1)
        return scores

    def rows(self, tensor: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        return tensor.flatten(1)

    def condition_rows(self, u: Shaped[Tensor, "b a"]) -> Shaped[Tensor, "b a"]:
        return u


class LatentVideoCritic(nn.Module):
    """Scores each latent frame from its clean estimate, its latent and its condition; rows are b x f."""

    def __init__(self, latent_channels: int, condition_dim: int, hidden_dim: int = 256) -> None:
        super().__init__()
        self.frame = _frame_encoder(2 * latent_channels, hidden_dim)
        self.condition = nn.Linear(condition_dim, hidden_dim)
        self.score = nn.Sequential(nn.GELU(), nn.Linear(hidden_dim, 1))

    def forward(
        self, x_hat: Float[Tensor, "b c f h w"], z: Float[Tensor, "b c f h w"], u: Float[Tensor, "b f a"]
    ) -> Float[Tensor, "b f"]:
        frames = rearrange(torch.cat([x_hat, z], dim=1), "b c f h w -> (b f) c h w")
        features = self.frame(frames).unflatten(0, u.shape[:2]) + self.condition(u)
        scores: Tensor = self.score(features).squeeze(-1)
        return scores

    def rows(self, tensor: Float[Tensor, "b c f h w"]) -> Float[Tensor, "n d"]:
        return _frame_rows(tensor)

    def condition_rows(self, u: Shaped[Tensor, "b f a"]) -> Shaped[Tensor, "n a"]:
        return u.flatten(0, 1)


class HistoryCritic(nn.Module):
    """Scores a clip by its generated latent frames, each paired with the last given one; rows are clips."""

    def __init__(self, latent_channels: int, condition_dim: int, hidden_dim: int = 256) -> None:
        super().__init__()
        self.frames = LatentVideoCritic(latent_channels, condition_dim, hidden_dim)

    def forward(
        self, x_hat: Float[Tensor, "b c f h w"], z: Float[Tensor, "b c g h w"], u: Float[Tensor, "b f a"]
    ) -> Float[Tensor, " b"]:
        num_given = z.shape[2]
        made = x_hat[:, :, num_given:]
        scores: Tensor = self.frames(made, z[:, :, -1:].expand_as(made), u[:, num_given:])
        return scores.sum(1)

    def rows(self, tensor: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        return tensor.flatten(1)

    def condition_rows(self, u: Shaped[Tensor, "b a"]) -> Shaped[Tensor, "b a"]:
        return u


class ActionCritic(nn.Module):
    """Scores each latent frame from its clean estimate and its actions; one row per sample and frame."""

    def __init__(self, latent_channels: int, condition_dim: int, hidden_dim: int = 256) -> None:
        super().__init__()
        self.frame = _frame_encoder(latent_channels, hidden_dim)
        self.action = nn.Linear(condition_dim, hidden_dim)
        self.condition = nn.Linear(condition_dim, hidden_dim)
        self.score = nn.Sequential(nn.GELU(), nn.Linear(hidden_dim, 1))

    def forward(
        self, x_hat: Float[Tensor, "b c f h w"], z: Float[Tensor, "b n a"], u: Float[Tensor, "b f g"]
    ) -> Float[Tensor, "b f"]:
        frames = self.frame(rearrange(x_hat, "b c f h w -> (b f) c h w")).unflatten(0, u.shape[:2])
        scores: Tensor = self.score(
            frames + self.action(latent_frame_actions(z)) + self.condition(u)
        ).squeeze(-1)
        return scores

    def rows(self, tensor: Float[Tensor, "b ..."]) -> Float[Tensor, "n d"]:
        return latent_frame_actions(tensor).flatten(0, 1) if tensor.ndim == 3 else _frame_rows(tensor)

    def condition_rows(self, u: Shaped[Tensor, "b f a"]) -> Shaped[Tensor, "n a"]:
        return u.flatten(0, 1)


def _frame_encoder(channels: int, hidden_dim: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 64, 4, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(64, 128, 4, stride=2, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, hidden_dim),
    )


def _frame_rows(video: Float[Tensor, "b c f h w"]) -> Float[Tensor, "n d"]:
    return rearrange(video, "b c f h w -> (b f) (c h w)")


class ProjectionHead(nn.Module):
    """Two-layer map of rows onto the unit sphere."""

    def __init__(
        self, in_dim: int, out_dim: int = 128, *, layer_norm: bool = False, linear: Linear = nn.Linear
    ) -> None:
        super().__init__()
        # No affine part: the following linear layer contains it, and stacked seeds need no copy of it.
        norm = [nn.LayerNorm(in_dim, elementwise_affine=False)] if layer_norm else []
        self.net = nn.Sequential(*norm, linear(in_dim, out_dim), nn.GELU(), linear(out_dim, out_dim))

    def forward(self, rows: Float[Tensor, "*s n d"]) -> Float[Tensor, "*s n out"]:
        return F.normalize(self.net(rows), dim=-1, eps=1e-8)
