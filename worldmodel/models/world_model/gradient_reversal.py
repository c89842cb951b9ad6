"""Embodiment-invariant latent actions: a classifier tries to tell the robot from z, its gradient reversed."""

from typing import Any

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def reverse_gradient(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same values; what comes back through them has its sign changed."""
    reversed_: Tensor = _Reverse.apply(x)
    return reversed_


class EmbodimentClassifier(nn.Module):
    """Which robot made this latent action?"""

    def __init__(self, latent_action_dim: int, num_embodiments: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(latent_action_dim, hidden), nn.GELU(), nn.Linear(hidden, num_embodiments)
        )

    def forward(self, latent_actions: Float[Tensor, "b n k"]) -> Float[Tensor, "b n classes"]:
        """Unnormalized log-probabilities of the embodiments."""
        logits: Tensor = self.net(latent_actions)
        return logits


def embodiment_loss(
    classifier: EmbodimentClassifier, latent_actions: Float[Tensor, "b n k"], embodiment: Int[Tensor, " b"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy that trains the classifier and, reversed, the latent actions; and the accuracy."""
    logits = classifier(reverse_gradient(latent_actions))
    labels = repeat(embodiment, "b -> b n", n=logits.shape[1])
    accuracy = (logits.argmax(-1) == labels).float().mean()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), accuracy
