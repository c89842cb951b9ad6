"""What bounds a score of the identifiability study: oracles, rotated latents, mechanism diversity.

Axes: s seeds, n samples, d latents.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from worldmodel.diagnostics.identifiability.correlation import matched_correlation
from worldmodel.diagnostics.mechanisms.mechanism_diversity import MechanismDiversity, mechanism_diversity
from worldmodel.md_vae.gaussian import Gaussian, gaussian_nll, standard_kl
from worldmodel.md_vae.simulation import (
    IdentifiabilityData,
    IdentifiabilityDataConfig,
    draw_identifiability_data,
    random_stream,
)
from worldmodel.md_vae.stacked import SeedStack

ROTATION = 200  # random stream of the rotations, beside those of data and training


def oracles(config: IdentifiabilityDataConfig, seeds: range) -> dict[str, list[float]]:
    """Scores that need no model, per seed: what they say about the metric, not about learning.

    ceiling: posterior means of the true model linearized at the true latent, so about what the best estimate
    from (x, u) reaches. modulated: w = z * m(u) + b(u) itself, scored against z. rotated: z after one random
    rotation. rotated_by_condition: z after a rotation of its own in every condition.
    """
    drawn = draw_identifiability_data(config, list(seeds))
    parts = (drawn.z, drawn.u, drawn.condition)
    z, u, condition = (part[:, drawn.num_train :] for part in parts)
    shared = rotations(list(seeds), 1, config.latent_dim)[:, 0]
    own = rotations(list(seeds), config.num_conditions, config.latent_dim)
    return {
        "ceiling": [ceiling(drawn, index) for index in range(len(seeds))],
        "modulated": _mcc(z, drawn.truth.modulate(z, u)),
        "rotated": _mcc(z, z @ shared.transpose(-1, -2)),
        "rotated_by_condition": _mcc(z, turned(z, of_condition(own, condition))),
    }


def ceiling(drawn: IdentifiabilityData, index: int, num_points: int = 400) -> float:
    """Correlation of z with E[z | x, u], sqrt(1 - mean posterior variance), h linearized at each true z."""
    truth, std = drawn.truth.of_seed(index), drawn.truth.config.noise_std

    def output(z: Tensor, u: Tensor) -> Tensor:
        return truth(z.view(1, 1, -1), u.view(1, 1, -1)).flatten()

    z, u = (part[index, -num_points:].double() for part in (drawn.z, drawn.u))
    jacobian = vmap(jacfwd(output))(z, u)
    precision = torch.eye(z.shape[1]) + jacobian.transpose(1, 2) @ jacobian / std**2
    variance = torch.linalg.inv(precision).diagonal(0, 1, 2).mean(0)
    return float((1 - variance).sqrt().mean())


def rotations(seeds: list[int], count: int, dim: int) -> Tensor:
    """Uniformly random rotations and reflections, [s count d d]."""
    draws = [torch.randn(count, dim, dim, generator=random_stream(seed, ROTATION)) for seed in seeds]
    basis, upper = torch.linalg.qr(torch.stack(draws))
    return basis * upper.diagonal(0, -2, -1).sign().unsqueeze(-2)


def of_condition(turns: Tensor, condition: Tensor) -> Tensor:
    """The rotation of each sample's condition, [s n d d]."""
    return turns[torch.arange(len(turns)).unsqueeze(1), condition]


def turned(z: Tensor, turns: Tensor) -> Tensor:
    """Each sample turned by its rotation, or by the one of its seed."""
    return (turns @ z.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class RotationControl:
    """A learned model before and after its latent is rotated: bound and score, one value per seed.

    All values of a seed that diverged are NaN.
    """

    elbo: list[float]  # nats per sample
    elbo_rotated: list[float]  # one rotation per seed, the posterior rotated with the latent
    elbo_rotated_by_condition: list[float]  # likewise, a rotation of its own in every condition
    elbo_rotated_mean_field: list[float]  # the best diagonal posterior in the rotated coordinates
    mcc: list[float]
    mcc_rotated: list[float]
    mcc_rotated_by_condition: list[float]


def rotation_control(stack: SeedStack) -> RotationControl:
    """Rotate the latent of MD-VAEs (prior N(0, I)) by random rotations, on the test split."""
    config = stack.model.config
    if config.has_conditional_prior or config.family == "beta_vae":
        raise ValueError(f"the control is for models with g(z, u) and prior N(0, I), not {config.family}")
    x, u = stack.test_rows.split(stack.row_dims, dim=-1)
    one = rotations(list(stack.seeds), 1, stack.data.latent_dim)
    own = rotations(list(stack.seeds), stack.data.num_conditions, stack.data.latent_dim)
    own = of_condition(own, stack.test_condition)
    with torch.no_grad():
        posterior = stack.model.encode(x, u)
        noise = torch.randn(posterior.mean.shape, generator=random_stream(ROTATION, 1))
        drawn = posterior.sample(noise)  # the rotated models see the same draw in their own coordinates
        rotated = _rotated(posterior, one)
        diagonal = _nearest_diagonal(rotated)
        identity = torch.eye(stack.data.latent_dim).expand_as(one)
        sides = {
            "elbo": (posterior, drawn, identity),
            "elbo_rotated": (rotated, turned(drawn, one), one),
            "elbo_rotated_by_condition": (_rotated(posterior, own), turned(drawn, own), own),
            "elbo_rotated_mean_field": (diagonal, diagonal.sample(noise), one),
        }
        bounds = {name: _bound(stack, x, u, *side) for name, side in sides.items()}
    z, estimate = stack.test_z, posterior.mean
    scores = {
        "mcc": _mcc(z, estimate),
        "mcc_rotated": _mcc(z, rotated.mean),
        "mcc_rotated_by_condition": _mcc(z, turned(estimate, own)),
    }
    values = bounds | scores
    is_sound = np.isfinite(list(values.values())).all(0)
    return RotationControl(
        **{name: np.where(is_sound, value, np.nan).tolist() for name, value in values.items()}
    )


def _rotated(posterior: Gaussian, turns: Tensor) -> Gaussian:
    """The same posterior, of the rotated latent; NaN where a covariance is none, as in diverged seeds."""
    covariance = turns @ posterior.covariance @ turns.transpose(-1, -2)
    factor, has_failed = torch.linalg.cholesky_ex(covariance)
    factor = factor.masked_fill(has_failed.bool()[..., None, None], torch.nan)
    return Gaussian(turned(posterior.mean, turns), factor.diagonal(0, -2, -1).log(), factor.tril(-1))


def _nearest_diagonal(posterior: Gaussian) -> Gaussian:
    """Of all diagonal Gaussians the one with the diagonal of the precision is nearest to a Gaussian."""
    inverse, has_failed = torch.linalg.inv_ex(posterior.covariance)
    precision = inverse.diagonal(0, -2, -1).masked_fill(has_failed.bool()[..., None], torch.nan)
    return Gaussian(posterior.mean, -0.5 * precision.log())


def _bound(stack: SeedStack, x: Tensor, u: Tensor, q: Gaussian, sample: Tensor, turns: Tensor) -> list[float]:
    """The bound of the model whose latent is rotated: g(R^T z, u) and posterior q."""
    mean = stack.model.generate(turned(sample, turns.transpose(-1, -2)), u)
    error = gaussian_nll(x, mean, stack.model.decoder_std)
    values: list[float] = (-(error + standard_kl(q).mean(-1))).tolist()
    return values


def learned_diversity(stack: SeedStack, index: int, num_points: int = 32) -> MechanismDiversity:
    """The contrasts of one learned generator, at latents drawn from the prior."""
    model = stack.model.of_seed(index)
    return _diversity(lambda z, u: model.generate(z, u), stack, index, num_points)


def true_diversity(stack: SeedStack, index: int, num_points: int = 32) -> MechanismDiversity:
    """The contrasts of the data's own generator, at latents drawn from the prior."""
    return _diversity(stack.truth.of_seed(index), stack, index, num_points)


def _diversity(
    generator: Callable[[Tensor, Tensor], Tensor], stack: SeedStack, index: int, num: int
) -> MechanismDiversity:
    z = torch.randn(num, stack.data.latent_dim, generator=random_stream(ROTATION, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # piecewise linear generators are named in the result
        return mechanism_diversity(
            lambda z, u: generator(z.unsqueeze(0), u.unsqueeze(0)).squeeze(0), z, stack.alphabet[index]
        )


def _mcc(true: Tensor, estimated: Tensor) -> list[float]:
    # What is not finite becomes a constant, which correlates with nothing.
    found = matched_correlation(true, estimated.nan_to_num(0.0, 0.0, 0.0))
    values: list[float] = np.asarray(found.mean).tolist()
    return values
