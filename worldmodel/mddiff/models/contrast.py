"""The mechanistic contrast (MCL) of a concept model: critic and heads for images or latents."""

import math

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mcl.critics import ImageCritic, ProjectionHead, VectorCritic
from worldmodel.mcl.gradient_flow import freeze_unreached
from worldmodel.mddiff.models.config import MDDiffConfig


class FlatCritic(nn.Module):
    """The three-layer critic on [z, x_hat, u], with images and latents flattened; rows are samples."""

    def __init__(self, latent_dim: int, output_dim: int, condition_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.critic = VectorCritic(latent_dim, output_dim, condition_dim, hidden_dim)

    def forward(
        self, x_hat: Float[Tensor, "b ..."], z: Float[Tensor, "b ..."], u: Float[Tensor, "b a"]
    ) -> Float[Tensor, " b"]:
        """One score per sample."""
        scores: Tensor = self.critic(x_hat.flatten(1), z.flatten(1), u)
        return scores

    def rows(self, tensor: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        """One row per sample."""
        return tensor.flatten(1)

    def condition_rows(self, u: Shaped[Tensor, "b a"]) -> Shaped[Tensor, "b a"]:
        """One row per sample."""
        return u


def build_image_contrast(config: MDDiffConfig) -> MechanisticContrast | None:
    """Critic and heads for the generator that the config names; None when MCL is off."""
    contrast = config.contrast
    if contrast is None:
        return None
    latent_dim = math.prod(config.latent_shape)
    is_painting = contrast.generator == "decoder"
    output_dim = 3 * config.image_size**2 if is_painting else latent_dim
    channels = 3 if is_painting else config.vq.latent_channels
    mcl = contrast.mcl
    critic = (
        ImageCritic(channels, latent_dim, config.condition_dim, mcl.critic_hidden)
        if contrast.critic == "conv"
        else FlatCritic(latent_dim, output_dim, config.condition_dim, mcl.critic_hidden)
    )
    feature_dim, width = mcl.feature_dim(latent_dim, output_dim), mcl.embedding_dim
    return freeze_unreached(
        MechanisticContrast(
            mcl,
            critic,
            ProjectionHead(feature_dim, width, layer_norm=contrast.layer_norm),
            ProjectionHead(config.condition_dim, width),
        )
    )
