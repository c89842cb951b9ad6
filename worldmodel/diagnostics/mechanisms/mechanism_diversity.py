"""Generating-mechanism diversity (GMD): does the condition change a generator in enough independent ways?

For x = g(z, u) with Jacobian J, the mechanism vector is

    V(z, u) = (d log|J| / dz_i, d^2 log|J| / dz_i^2)_{i = 1..d},    log|J| = 1/2 log det(J^T J)

and Assumption 2 requires 2d + 1 conditions whose contrasts V(z, u_n) - V(z, u_0) are linearly independent at
every z. log|J| of an affine or piecewise linear generator does not change with z, so there V is 0 for all
conditions. Axes: n latent points, k conditions, d latents, a size of a condition.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import grad, jacfwd, vmap

Generator = Callable[
    [Tensor, Tensor], Tensor
]  # (z[m d], u[m a]) -> x[m ...], differentiable, in double precision
Limit = Literal["affine generator", "piecewise linear generator", "too few conditions", "dependent contrasts"]
MAX_LATENT_DIM = 64  # third derivatives: the cost grows with the cube of d


@dataclass(frozen=True)
class MechanismDiversity:
    """Rank and conditioning of the contrasts at every point, and the verdict on Assumption 2."""

    latent_dim: int
    num_conditions: int
    rank: Int[Tensor, " n"]  # of the contrasts at each z; Assumption 2 requires 2 d
    singular_values: Float[
        Tensor, "n r"
    ]  # of the contrasts, each coordinate of V scaled to unit root mean square
    largest_contrast: float  # largest |V(z, u_n) - V(z, u_0)| before scaling
    limits: tuple[Limit, ...]  # obstacles to the assumption; empty if there are none
    assumption: str = "Assumption 2"  # the assumption that the contrasts belong to

    @property
    def full_rank(self) -> Bool[Tensor, " n"]:
        """Points at which Assumption 2 holds."""
        return self.rank == 2 * self.latent_dim

    @property
    def condition_number(self) -> Float[Tensor, " n"]:
        """Largest over smallest singular value where the rank is full, infinite elsewhere."""
        largest, smallest = self.singular_values[:, 0], self.singular_values[:, -1]
        return torch.where(self.full_rank, largest / smallest, torch.inf)

    @property
    def effective_rank(self) -> Float[Tensor, " n"]:
        """Exponential of the entropy of the singular values: the number of directions in effective use."""
        share = self.singular_values / self.singular_values.sum(1, keepdim=True).clamp(min=1e-300)
        entropy = -torch.special.xlogy(share, share).sum(1)
        return torch.where(self.rank > 0, entropy.exp(), 0)

    def verdict(self) -> str:
        """One sentence for a report."""
        share, points = self.full_rank.double().mean().item(), len(self.rank)
        head = f"{self.assumption} holds at {share:.0%} of {points} points"
        needed = f"rank {self.rank.min().item()} to {self.rank.max().item()} of {2 * self.latent_dim}"
        why = f"; limited by: {', '.join(self.limits)}" if self.limits else ""
        return f"{head} ({needed}, {self.num_conditions} conditions){why}"


def mechanism_vectors(
    generator: Generator, z: Float[Tensor, "n d"], conditions: Float[Tensor, "k a"], *, chunk_size: int = 256
) -> Float[Tensor, "n k twice_d"]:
    """V(z, u) at every point z and condition u: first and second derivatives of log|J|, see the module."""
    if z.shape[1] > MAX_LATENT_DIM:
        raise ValueError(
            f"V needs third derivatives: at most {MAX_LATENT_DIM} latents, got {z.shape[1]}; fix the others"
        )

    def output(point: Tensor, condition: Tensor) -> Tensor:
        return generator(point.unsqueeze(0), condition.unsqueeze(0)).flatten()

    def log_volume(point: Tensor, condition: Tensor) -> Tensor:
        jacobian = jacfwd(output)(point, condition)
        # Not slogdet: its second derivative under vmap comes out wrong (torch 2.13).
        return torch.linalg.cholesky_ex(jacobian.T @ jacobian)[0].diagonal().log().sum()

    def slope(point: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        value = grad(log_volume)(point, condition)
        return value, value

    def vector(point: Tensor, condition: Tensor) -> Tensor:
        curvature, value = jacfwd(slope, has_aux=True)(point, condition)
        return torch.cat([value, curvature.diagonal()])

    num_points, num_conditions = len(z), len(conditions)
    pairs = z.double().repeat_interleave(num_conditions, 0), conditions.double().repeat(num_points, 1)
    stretch = torch.linalg.svdvals(vmap(jacfwd(output), chunk_size=chunk_size)(*pairs))
    if (stretch[:, -1] <= 1e-7 * stretch[:, 0]).any():
        raise ValueError(
            "the Jacobian of the generator loses rank: it is not invertible in z and V has no meaning"
        )
    vectors = vmap(vector, chunk_size=chunk_size)(*pairs).detach()
    return vectors.unflatten(0, (num_points, num_conditions))


def mechanism_diversity(
    generator: Generator,
    z: Float[Tensor, "n d"],
    conditions: Float[Tensor, "k a"],
    *,
    relative_tolerance: float = 1e-7,
    chunk_size: int = 256,
) -> MechanismDiversity:
    """Rank, singular values and limits of the contrasts at z; warns if V vanishes because of the form of g.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import mechanism_diversity
        >>> def generator(z, u):  # one latent, bent in a way that depends on the condition
        ...     return z + (u[:, :1] * z).sin() / 2 + u[:, 1:] * z**3 / 9
        >>> rng = torch.Generator().manual_seed(0)
        >>> z = torch.randn(4, 1, generator=rng, dtype=torch.float64)
        >>> conditions = torch.rand(5, 2, generator=rng, dtype=torch.float64)
        >>> mechanism_diversity(generator, z, conditions).verdict()
        'Assumption 2 holds at 100% of 4 points (rank 2 to 2 of 2, 5 conditions)'

    References:
        "Factored Generative Models through Mechanism Diversity", Theorem 1 and Assumption 2.
    """
    if len(conditions) < 2:
        raise ValueError(f"contrasts need at least 2 conditions, got {len(conditions)}")
    shape = generator_shape(generator, z, conditions)
    vectors = mechanism_vectors(generator, z, conditions, chunk_size=chunk_size)
    contrasts = vectors[:, 1:] - vectors[:, :1]
    rank, singular = contrast_rank(contrasts, relative_tolerance)
    needed, available = 2 * z.shape[1], len(conditions) - 1
    limits: list[Limit] = [] if shape == "curved" else [shape]
    if available < needed:
        limits.append("too few conditions")
    if shape == "curved" and (rank < min(needed, available)).any():
        limits.append("dependent contrasts")
    if shape != "curved":
        warnings.warn(f"{shape} (linear h, or ReLU and the like): V is 0 almost everywhere", stacklevel=2)
    largest = contrasts.abs().max().item()
    return MechanismDiversity(z.shape[1], len(conditions), rank, singular, largest, tuple(limits))


@dataclass(frozen=True)
class FirstOrderDiversity:
    """Contrasts J(z, u_n) v - J(z, u_0) v of all directions v at one z, one row for each condition u_n."""

    num_conditions: int
    num_directions: int
    singular_values: Float[Tensor, " r"]
    floor: float  # the largest singular value where both passes have one condition: rounding and curvature

    @property
    def rank(self) -> int:
        """Singular values that are larger than the floor."""
        return int((self.singular_values > self.floor).sum())

    @property
    def condition_number(self) -> float:
        """Largest over smallest of the values that count; infinite where none does."""
        counted = self.singular_values[: self.rank]
        return (counted[0] / counted[-1]).item() if self.rank else float("inf")

    def verdict(self) -> str:
        """One sentence for a report."""
        head = f"the response to {self.num_directions} directions changes with the condition"
        largest = self.singular_values[0].item()
        if not self.rank:
            return f"no change above the error is seen ({largest:.2g} against {self.floor:.2g})"
        return (
            f"{head} in {self.rank} of {self.num_conditions - 1} independent ways, condition number "
            f"{self.condition_number:.3g}, largest singular value {largest:.2g} against an error of "
            f"{self.floor:.2g}; necessary for Assumption 2, not sufficient"
        )


def first_order_diversity(
    generator: Generator,
    z: Float[Tensor, "..."],
    conditions: Float[Tensor, "k ..."],
    directions: Float[Tensor, "r ..."],
    *,
    step: float,
) -> FirstOrderDiversity:
    """How J(z, u) v changes with u, by differences: forward passes only, in any precision.

    The floor compares every difference with one of the same condition and half the step, so that it holds
    the rounding and the curvature of the differences.

    Args:
        generator: (z[1 ...], u[1 ...]) -> x[1 ...].
        z: one point.
        conditions: the first is u_0.
        directions: shaped like z.
        step: root mean square move of an element of z.
    """
    if len(conditions) < 2:
        raise ValueError(f"contrasts need at least 2 conditions, got {len(conditions)}")

    def outputs(condition: Tensor, size: float) -> Tensor:
        """Directional derivatives of the generator at z, by forward differences with this step size."""
        base = generator(z[None], condition[None]).double()
        moves = [size * v / v.square().mean().sqrt() for v in directions]
        return torch.cat(
            [((generator((z + v)[None], condition[None]).double() - base) / size).flatten() for v in moves]
        )

    first = outputs(conditions[0], step)
    changes = torch.stack([outputs(condition, step) - first for condition in conditions[1:]])
    errors = torch.stack(
        [outputs(u, step / 2) - row - first for u, row in zip(conditions[1:], changes, strict=True)]
    )
    singular, floor = torch.linalg.svdvals(changes), torch.linalg.svdvals(errors)[0].item()
    return FirstOrderDiversity(len(conditions), len(directions), singular, floor)


def contrast_rank(
    contrasts: Float[Tensor, "n k twice_d"], relative_tolerance: float
) -> tuple[Int[Tensor, " n"], Float[Tensor, "n r"]]:
    """Rank and singular values of contrasts, each coordinate scaled to unit root mean square."""
    scale = contrasts.square().mean((0, 1)).sqrt()
    # Rounding in third derivatives is far below this; a coordinate that small adds no diversity.
    carries = scale > 1e-10
    scaled = torch.where(carries, contrasts / scale.where(carries, torch.ones_like(scale)), 0)
    singular = torch.linalg.svdvals(scaled)
    return (singular > relative_tolerance * singular[:, :1].clamp(min=1e-300)).sum(1), singular


def generator_shape(
    generator: Generator, z: Float[Tensor, "n d"], conditions: Float[Tensor, "k a"]
) -> Literal["curved", "affine generator", "piecewise linear generator"]:
    """Whether g is curved as a function of z: smoothly, only at kinks, or not at all."""
    z = z.double()
    u = conditions.double()[torch.arange(len(z)) % len(conditions)]

    def directional(latent: Tensor) -> Tensor:
        return torch.func.jvp(lambda inner: generator(inner, u), (latent,), (step,))[1]

    # Steps between points cross kinks, which the derivative at a point cannot detect.
    step = z.roll(1, 0) - z + z.std() / z.shape[1] ** 0.5
    curvature = torch.func.jvp(directional, (z,), (step,))[1]
    outputs = generator(z + step, u), generator(z, u), generator(z - step, u)
    size = max(output.abs().max().item() for output in outputs) + 1e-300
    if curvature.abs().max().item() > 1e-9 * size:
        return "curved"
    bend = (outputs[0] - 2 * outputs[1] + outputs[2]).abs().max().item()
    return "piecewise linear generator" if bend > 1e-9 * size else "affine generator"
