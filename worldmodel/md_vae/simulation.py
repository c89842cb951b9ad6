"""Synthetic data whose mechanism changes with a condition: x = h(z * m(u) + b(u)) + noise (paper, D.3).

z ~ N(0, I) independent of u; u is one of |U| fixed vectors. Datasets of one seed are paired across |U|: the
same z, noise, h, m and b, and an alphabet that is only extended. Axes: s seeds, n samples, d latents, x
outputs, a size of a condition, k conditions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

MAX_CONDITIONS = 128  # the alphabet of a seed is drawn once at this size and truncated
REFERENCE_DRAWS = 4096  # conditions and latents used to fix the scales of m, b and h
(ALPHABET, MODULATION, SHIFT, MIXING, LATENTS, NOISE) = range(6)  # random streams of a seed


@dataclass(frozen=True)
class IdentifiabilityDataConfig:
    """Every choice of the data process; those that the paper does not specify are marked open."""

    latent_dim: int = 5  # d_z
    num_conditions: int = 8  # |U|
    condition_dim: int = 16  # size of a condition vector
    num_samples: int = 50_000  # per seed, train and test
    test_share: float = 0.2  # last part of the samples
    noise_std: float = 0.1  # of x
    mixing: Literal["orthogonal", "generic"] = (
        "orthogonal"  # weights of h: semi-orthogonal or Gaussian (open)
    )
    activation: Literal["leaky_relu", "smooth"] = (
        "leaky_relu"  # of h; smooth: slope x + (1 - slope) softplus(x)
    )
    slope: float = 0.2  # negative slope of h, m and b (open)
    output_dim: int = 0  # size of x; 0 = the width of h, max(64, 4 d_z) (open)
    gain: float = 1.0  # root of the power of h(w) over that of w; sets the signal to noise ratio (open)
    modulation: float = 0.5  # m = exp(modulation t), t of unit variance over N(0, I) conditions (open)
    shift: float = 0.5  # b = shift t, t of unit variance as well (open)

    def __post_init__(self) -> None:
        if not 2 <= self.num_conditions <= MAX_CONDITIONS:
            raise ValueError(f"num_conditions must be 2 to {MAX_CONDITIONS}, got {self.num_conditions}")
        if not 0 < self.test_share < 1:
            raise ValueError(f"test_share must lie between 0 and 1, got {self.test_share}")
        if self.output_dim and self.output_dim < self.latent_dim:
            raise ValueError(
                f"output_dim {self.output_dim} < latent_dim {self.latent_dim}: h cannot be invertible"
            )

    @property
    def width(self) -> int:
        """Hidden width of h, and of encoder and decoder."""
        return max(64, 4 * self.latent_dim)


@dataclass(frozen=True)
class TrueGenerator:
    """The mechanisms of s seeds: x = h(z * m(u) + b(u)) without noise."""

    mixing: tuple[Float[Tensor, "s _ _"], ...]  # weights of h, the last one scaled by the gain
    modulation: tuple[Float[Tensor, "s _ _"], ...]  # weights of log m, then its offset
    shift: tuple[Float[Tensor, "s _ _"], ...]
    config: IdentifiabilityDataConfig

    def modulate(self, z: Float[Tensor, "s n d"], u: Float[Tensor, "s n a"]) -> Float[Tensor, "s n d"]:
        """The modulated latent w = z * m(u) + b(u)."""
        slope = self.config.slope
        return z * _condition_net(self.modulation, u, slope).exp() + _condition_net(self.shift, u, slope)

    def mix(self, w: Float[Tensor, "s n d"]) -> Float[Tensor, "s n x"]:
        """The mixing function h at the points w."""
        return _mix(self.mixing, w, self.config)

    def __call__(self, z: Float[Tensor, "s n d"], u: Float[Tensor, "s n a"]) -> Float[Tensor, "s n x"]:
        return self.mix(self.modulate(z, u))

    def of_seed(self, index: int) -> "TrueGenerator":
        """The mechanism of one seed, still with a leading axis of size 1, in double precision."""
        cut = [tuple(part[index : index + 1].double() for part in parts) for parts in self._parts()]
        return TrueGenerator(cut[0], cut[1], cut[2], self.config)

    def _parts(self) -> tuple[tuple[Tensor, ...], ...]:
        return self.mixing, self.modulation, self.shift


@dataclass(frozen=True)
class IdentifiabilityData:
    """Datasets of s seeds; the first `num_train` samples are for training."""

    x: Float[Tensor, "s n x"]
    u: Float[Tensor, "s n a"]
    condition: Int[Tensor, "s n"]  # index of u in the alphabet
    z: Float[Tensor, "s n d"]  # true latents, for scoring only
    alphabet: Float[Tensor, "s k a"]
    truth: TrueGenerator
    num_train: int


def random_stream(*key: int) -> torch.Generator:
    """A generator that depends only on the key: the same draws alone, in a stack or after resuming."""
    # The length goes first: a seed sequence pads with zeros, so (3,) and (3, 0) would be one stream.
    state = np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def draw_identifiability_data(config: IdentifiabilityDataConfig, seeds: Sequence[int]) -> IdentifiabilityData:
    """The datasets of these seeds; each depends on its own seed only."""
    truth = _true_generator(config, seeds)
    parts = [_draw(config, seed) for seed in seeds]
    z, alphabet, condition, noise = (torch.stack(column) for column in zip(*parts, strict=True))
    u = torch.take_along_dim(alphabet, condition.unsqueeze(-1), dim=1)
    x = truth(z, u).add_(noise, alpha=config.noise_std)
    return IdentifiabilityData(
        x,
        u,
        condition,
        z,
        alphabet,
        truth,
        config.num_samples - round(config.num_samples * config.test_share),
    )


def _draw(config: IdentifiabilityDataConfig, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latents, alphabet, condition indices and unit noise of one seed."""
    alphabet = _alphabet(config, seed)
    stream = random_stream(seed, LATENTS)
    z = torch.randn(config.num_samples, config.latent_dim, generator=stream)
    # One uniform number per sample, scaled to |U|: paired across |U|.
    share = torch.rand(config.num_samples, generator=stream, dtype=torch.float64)
    condition = (share * config.num_conditions).long()
    noise = torch.randn(config.num_samples, _observed_dim(config), generator=random_stream(seed, NOISE))
    return z, alphabet, condition, noise


def _alphabet(config: IdentifiabilityDataConfig, seed: int) -> Tensor:
    table = torch.randn(MAX_CONDITIONS, config.condition_dim, generator=random_stream(seed, ALPHABET))
    return table[: config.num_conditions]


def _true_generator(config: IdentifiabilityDataConfig, seeds: Sequence[int]) -> TrueGenerator:
    each = [_seed_generator(config, seed) for seed in seeds]
    mixing, modulation, shift = (
        tuple(torch.cat(layer) for layer in zip(*(parts[kind] for parts in each), strict=True))
        for kind in range(3)
    )
    return TrueGenerator(mixing, modulation, shift, config)


def _seed_generator(
    config: IdentifiabilityDataConfig, seed: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    reference = torch.randn(
        1, REFERENCE_DRAWS, config.condition_dim, generator=random_stream(seed, ALPHABET, 1)
    )
    nets = []
    for purpose, scale in ((MODULATION, config.modulation), (SHIFT, config.shift)):
        stream = random_stream(seed, purpose)
        first = torch.randn(1, config.condition_dim, 64, generator=stream) * config.condition_dim**-0.5
        second = torch.randn(1, 64, config.latent_dim, generator=stream) / 8
        raw = F.leaky_relu(reference @ first, config.slope) @ second
        std, mean = torch.std_mean(raw, dim=1, keepdim=True)
        nets.append([first, second * (scale / std), -mean * (scale / std)])
    mixing = _mixing_weights(config, random_stream(seed, MIXING))
    latents = torch.randn(1, REFERENCE_DRAWS, config.latent_dim, generator=random_stream(seed, LATENTS, 1))
    w = latents * _condition_net(nets[0], reference, config.slope).exp()
    w = w + _condition_net(nets[1], reference, config.slope)
    power = _mix(mixing, w, config).square().sum() / w.square().sum()
    mixing[-1] = mixing[-1] * (config.gain / power.sqrt())
    return mixing, nets[0], nets[1]


def _mixing_weights(config: IdentifiabilityDataConfig, stream: torch.Generator) -> list[Tensor]:
    sizes = [config.latent_dim, config.width, config.width, _observed_dim(config)]
    weights = []
    for rows, columns in itertools.pairwise(sizes):
        weight = torch.randn(rows, columns, generator=stream)
        if config.mixing == "orthogonal":
            tall = weight if rows >= columns else weight.T
            basis = torch.linalg.qr(tall)[0]
            weight = basis if rows >= columns else basis.T
        else:
            weight = weight * rows**-0.5
        weights.append(weight.unsqueeze(0))
    return weights


def _observed_dim(config: IdentifiabilityDataConfig) -> int:
    return config.output_dim or config.width


def _condition_net(layers: Sequence[Tensor], u: Tensor, slope: float) -> Tensor:
    first, second, offset = layers
    return F.leaky_relu(u @ first, slope) @ second + offset


def _mix(layers: Sequence[Tensor], w: Tensor, config: IdentifiabilityDataConfig) -> Tensor:
    for layer in layers[:-1]:
        w = w @ layer
        if config.activation == "leaky_relu":
            w = F.leaky_relu(w, config.slope)
        else:
            w = config.slope * w + (1 - config.slope) * F.softplus(w)
    return w @ layers[-1]
