"""Variational autoencoders of the identifiability study, several seeds in one module.

    beta-VAE   z ~ N(0, I)              x ~ N(f(z), s^2)                    q(z | x)
    iVAE       z ~ N(b(u), m(u)^2)      x ~ N(f(z), s^2)                    q(z | x, u)
    MD-VAE     z ~ N(0, I)              x ~ N(g(z, u), s^2)                 q(z | x, u)
      concat         g(z, u) = f([z, u])
      modulated      g(z, u) = f(z * m(u) + b(u)), m > 0
      tied           the same g; the encoder outputs w = z * m(u) + b(u), and z = (w - b(u)) / m(u)
      hypernetwork   g(z, u) = f(A(u) z + b(u))

`tied` is the iVAE in other coordinates: w has the prior N(b(u), m(u)^2) and f does not depend on u. Both run
the same code; they differ only in which coordinates are called the latent. Axes: s seeds, n samples, d
latents, x outputs, a size of a condition.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.mcl.critics import Linear
from worldmodel.md_vae.gaussian import Gaussian, gaussian_nll, kl_divergence, standard_kl
from worldmodel.md_vae.stacked_linear import StackedLinear

Family = Literal["beta_vae", "ivae", "concat", "modulated", "tied", "hypernetwork"]


@dataclass(frozen=True)
class VaeConfig:
    """Which model, and the choices that the paper does not specify."""

    family: Family = "concat"  # the last four are MD-VAEs
    posterior: Literal["mean_field", "full"] = "mean_field"  # covariance of q
    beta: float = 1.0  # weight of the KL term (4 for the beta-VAE of the paper)
    width: int = 0  # hidden width of encoder and decoder; 0 = max(64, 4 d_z) as in the paper
    condition_width: int = 64  # hidden width of the two-layer nets m, b and A
    slope: float = 0.2  # negative slope of the activations
    activation: Literal["leaky_relu", "smooth"] = "leaky_relu"  # smooth: slope x + (1 - slope) softplus(x)
    decoder_std: float = 0.1  # s of the decoder, the true noise by default
    learns_std: bool = False  # train s, one number per seed that starts at decoder_std; else it is fixed

    def __post_init__(self) -> None:
        for name in ("beta", "decoder_std"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def has_conditional_prior(self) -> bool:
        """Whether the encoder works in the modulated space, where the prior depends on u."""
        return self.family in ("ivae", "tied")


@dataclass(frozen=True)
class VaeLoss:
    """The terms of the bound, mean over samples, one value per seed."""

    reconstruction: Float[Tensor, " s"]  # -E log p(x | z, u), nats
    kl: Float[Tensor, " s"]  # nats
    z: Float[Tensor, "s n d"]  # the posterior sample, in the coordinates of the decoder's input

    @property
    def negative_elbo(self) -> Float[Tensor, " s"]:
        """The bound itself, independent of beta."""
        return self.reconstruction + self.kl


class StackedVae(nn.Module):
    """S independent autoencoders of one family, trained in parallel."""

    def __init__(
        self,
        config: VaeConfig,
        *,
        latent_dim: int,
        output_dim: int,
        condition_dim: int,
        streams: Sequence[torch.Generator],
    ) -> None:
        super().__init__()
        self.config, self.latent_dim = config, latent_dim
        linear: Linear = partial(StackedLinear, streams=streams)
        sees_u = config.family != "beta_vae"
        encoder_in = output_dim + (condition_dim if sees_u else 0)
        decoder_in = latent_dim + (condition_dim if config.family == "concat" else 0)
        lower = latent_dim * (latent_dim - 1) // 2 if config.posterior == "full" else 0
        self.encoder = self._three_layers(linear, encoder_in, 2 * latent_dim + lower)
        self.decoder = self._three_layers(linear, decoder_in, output_dim)
        self.log_std = nn.Parameter(torch.zeros(len(streams))) if config.learns_std else None
        scale_dim = latent_dim**2 if config.family == "hypernetwork" else latent_dim
        self.condition_net = None
        if config.family in ("ivae", "modulated", "tied", "hypernetwork"):
            self.condition_net = nn.Sequential(
                linear(condition_dim, config.condition_width),
                nn.LeakyReLU(config.slope, inplace=True),
                linear(config.condition_width, scale_dim + latent_dim),
            )

    @property
    def decoder_std(self) -> float | Float[Tensor, " s"]:
        """The s of the decoder, one for each seed if it is trained."""
        std = self.config.decoder_std
        return std if self.log_std is None else std * self.log_std.exp()

    def encode(self, x: Float[Tensor, "s n x"], u: Float[Tensor, "s n a"]) -> Gaussian:
        """Approximate posterior given x and u: of the base variable w (iVAE, tied) or of z (others)."""
        inputs = x if self.config.family == "beta_vae" else torch.cat([x, u], dim=-1)
        d, out = self.latent_dim, self.encoder(inputs)
        if self.config.posterior == "mean_field":
            mean, log_std = out.chunk(2, dim=-1)
            return Gaussian(mean, log_std)
        mean, log_std, packed = out.split([d, d, d * (d - 1) // 2], dim=-1)
        rows, columns = torch.tril_indices(d, d, -1, device=out.device)
        # A gather from [packed, 0] fills the triangle in one kernel.
        place = torch.full((d, d), packed.shape[-1], device=out.device)
        place[rows, columns] = torch.arange(packed.shape[-1], device=out.device)
        lower = F.pad(packed, (0, 1)).index_select(-1, place.flatten()).unflatten(-1, (d, d))
        return Gaussian(mean, log_std, lower)

    def condition(self, u: Float[Tensor, "s n a"]) -> tuple[Tensor, Float[Tensor, "s n d"]]:
        """The nets of u: log m(u) (or A(u), flattened) and b(u)."""
        assert self.condition_net is not None, self.config.family
        out = self.condition_net(u)
        scale, shift = out.split([out.shape[-1] - self.latent_dim, self.latent_dim], dim=-1)
        return scale, shift

    def generate(self, z: Float[Tensor, "s n d"], u: Float[Tensor, "s n a"]) -> Float[Tensor, "s n x"]:
        """Mean of x given the latent, G(z, u); for the iVAE z is its own latent and u is ignored."""
        family = self.config.family
        if family == "concat":
            z = torch.cat([z, u], dim=-1)
        elif family in ("modulated", "tied"):
            log_scale, shift = self.condition(u)
            z = z * log_scale.exp() + shift
        elif family == "hypernetwork":
            matrix, shift = self.condition(u)
            # Close to the identity, so that an untrained A(u) neither mixes nor loses latents.
            z = z + (matrix.unflatten(-1, (self.latent_dim, -1)) @ z.unsqueeze(-1)).squeeze(-1) + shift
        x: Tensor = self.decoder(z)
        return x

    def loss(
        self, x: Float[Tensor, "s n x"], u: Float[Tensor, "s n a"], noise: Float[Tensor, "s n d"]
    ) -> VaeLoss:
        """Both terms of the bound with one posterior sample per row."""
        posterior = self.encode(x, u)
        sample = posterior.sample(noise)
        if self.config.has_conditional_prior:
            log_scale, shift = self.condition(u)
            kl = kl_divergence(posterior, shift, log_scale)
            mean = self.decoder(sample)
            z = (sample - shift) * torch.exp(-log_scale) if self.config.family == "tied" else sample
        else:
            kl = standard_kl(posterior)
            mean, z = self.generate(sample, u), sample
        return VaeLoss(gaussian_nll(x, mean, self.decoder_std), kl.mean(-1), z)

    def latents(
        self, x: Float[Tensor, "s n x"], u: Float[Tensor, "s n a"]
    ) -> dict[str, Float[Tensor, "s n d"]]:
        """Posterior means by name: `latent`, the model's own, and others that the model defines.

        `standardized`: an iVAE's latent standardized by its own prior, which is the latent of `tied`.
        `modulated`: the estimate of w = z * m(u) + b(u) if the model has one.
        """
        mean = self.encode(x, u).mean
        if self.condition_net is None or self.config.family == "hypernetwork":
            return {"latent": mean}
        log_scale, shift = self.condition(u)
        if self.config.family == "modulated":
            return {"latent": mean, "modulated": mean * log_scale.exp() + shift}
        standardized = (mean - shift) * torch.exp(-log_scale)
        if self.config.family == "tied":
            return {"latent": standardized, "modulated": mean}
        return {"latent": mean, "standardized": standardized, "modulated": mean}

    def of_seed(self, index: int) -> "StackedVae":
        """A copy that holds one seed only, in double precision on the CPU."""
        alone = copy.deepcopy(self).cpu().double()  # mps has no double precision
        for parameter in alone.parameters():
            parameter.data = parameter.data[index : index + 1].clone()
        return alone

    def _three_layers(self, linear: Linear, in_dim: int, out_dim: int) -> nn.Sequential:
        width = self.config.width or max(64, 4 * self.latent_dim)
        return nn.Sequential(
            linear(in_dim, width),
            self._activation(),
            linear(width, width),
            self._activation(),
            linear(width, out_dim),
        )

    def _activation(self) -> nn.Module:
        if self.config.activation == "smooth":
            return SmoothLeakyReLU(self.config.slope)
        return nn.LeakyReLU(self.config.slope, inplace=True)


class SmoothLeakyReLU(nn.Module):
    """The leaky ReLU with a smooth corner: a generator built from it has second derivatives."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, rows: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return self.slope * rows + (1 - self.slope) * F.softplus(rows)
