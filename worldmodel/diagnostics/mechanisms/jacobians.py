"""Jacobians of a generator at sampled latents, in blocks of latent coordinates.

Every measure of mechanistic independence accepts a generator with points z, a Jacobian, or the JacobianBlocks
of either. Axes: n points, m outputs, d latent coordinates, k blocks.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, jacfwd, vmap

from worldmodel.report.intervals import Interval, wilson_interval

Generator = Callable[[Tensor], Tensor]  # z[n d] -> x[n ...], samples independent of each other
Blocks = Sequence[Sequence[int]]  # latent coordinates of each factor
CHUNK_ELEMENTS = 2**19  # entries of one chunk's Jacobian, limited by the CPU cache
THRESHOLDS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # tau of the curves
FULL_RANK = 1e-7  # smallest over largest singular value below which a Jacobian counts as singular


@dataclass(frozen=True)
class JacobianBlocks:
    """Jacobians at n points, and the grouping of latent coordinates."""

    jacobian: Float[Tensor, "n m d"]
    blocks: tuple[tuple[int, ...], ...]

    @property
    def num_points(self) -> int:
        """Number of points."""
        return self.jacobian.shape[0]

    @property
    def latent_dim(self) -> int:
        """Number of latent coordinates."""
        return self.jacobian.shape[2]

    @cached_property
    def row_norms(self) -> Float[Tensor, "n m k"]:
        """||J_i[row, :]|| of every block i: the effect of a factor on an output."""
        if self.latent_dim == len(self.blocks):
            return self.jacobian[:, :, [block[0] for block in self.blocks]].abs()
        return torch.stack([self.block(i).norm(dim=2) for i in range(len(self.blocks))], dim=2)

    @cached_property
    def relative_sizes(self) -> Float[Tensor, "n m d"]:
        """Absolute entries over the largest one of their Jacobian; nan if all are zero."""
        size = self.jacobian.abs()
        return size / size.amax((1, 2), keepdim=True)

    @cached_property
    def singular_values(self) -> Float[Tensor, "n r"]:
        """Singular values of each Jacobian, largest first."""
        # The triangular factor has the same singular values and is d x d.
        return torch.linalg.svdvals(torch.linalg.qr(self.jacobian, mode="r")[1])

    def block(self, index: int) -> Float[Tensor, "n m d_i"]:
        """The columns of one factor."""
        return self.jacobian[:, :, list(self.blocks[index])]

    def support(self, threshold: float) -> Bool[Tensor, "n m d"]:
        """Entries above `threshold` times the largest entry of their Jacobian."""
        return self.relative_sizes > threshold

    def block_support(self, threshold: float) -> Bool[Tensor, "n m k"]:
        """Outputs that each factor affects."""
        support = self.support(threshold)
        return torch.stack([support[:, :, list(block)].any(2) for block in self.blocks], dim=2)


Source = Generator | JacobianBlocks | Tensor | np.ndarray


@dataclass(frozen=True)
class LocalDiffeomorphism:
    """Whether the generator is locally invertible at the sampled points, which all theory here requires."""

    share: float  # of the points, with full column rank
    interval: Interval  # 95 % of the share
    num_points: int
    smallest: Float[np.ndarray, " n"]  # smallest singular value
    condition_number: Float[np.ndarray, " n"]  # largest over smallest

    @property
    def worst_point(self) -> int:
        """Index of the worst conditioned Jacobian."""
        return int(self.condition_number.argmax())


def jacobian_blocks(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    blocks: Blocks | None = None,
    *,
    batched: bool = True,
    dtype: torch.dtype = torch.float64,
    chunk_size: int | None = None,
) -> JacobianBlocks:
    """Jacobians by forward-mode differentiation, d passes for each chunk of points.

    Args:
        source: generator, or a Jacobian [m d] or [n m d], or JacobianBlocks (which keep what is not given).
        z: points, for a generator.
        blocks: coordinates of each factor; every coordinate on its own if omitted.
        batched: whether the generator expects [n d]; otherwise one point [d].
        dtype: of the computation. Which entries are zero should be decided in double precision.
        chunk_size: points at a time; chosen by size if omitted.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import jacobian_blocks
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> jacobians = jacobian_blocks(lambda z: z.repeat(1, 3), z, blocks=[[0], [1]])
        >>> tuple(jacobians.jacobian.shape), jacobians.blocks
        ((8, 6, 2), ((0,), (1,)))
    """
    if isinstance(source, JacobianBlocks):
        return source if blocks is None else dataclasses.replace(source, blocks=_checked(blocks, source))
    if isinstance(source, Tensor | np.ndarray):
        jacobian = torch.as_tensor(source).detach().to(dtype)
        jacobian = jacobian.unsqueeze(0) if jacobian.ndim == 2 else jacobian
        if jacobian.ndim != 3 or not jacobian.numel():
            raise ValueError(f"a Jacobian is [m d] or [n m d], got {tuple(jacobian.shape)}")
    else:
        if z is None:
            raise ValueError("a generator needs points z [n d] to be differentiated at")
        # Forward mode gives tangents the layout of the points and cannot write to an expanded layout.
        points = z.detach().to(dtype).contiguous()
        jacobian = _differentiate(as_batched(source, batched, dtype), points, chunk_size)
    if not jacobian.isfinite().all():
        raise ValueError("the Jacobian holds values that are not finite")
    whole = JacobianBlocks(jacobian, tuple((i,) for i in range(jacobian.shape[2])))
    return whole if blocks is None else dataclasses.replace(whole, blocks=_checked(blocks, whole))


def as_batched(generator: Generator, batched: bool, dtype: torch.dtype) -> Generator:
    """The generator as z[n d] -> x[n m] in `dtype`; modules run on converted copies of their weights."""
    call = generator
    if isinstance(generator, nn.Module):
        _check_mode(generator)
        state = dict(generator.named_parameters()) | dict(generator.named_buffers())
        cast = {name: _cast(value, dtype) for name, value in state.items()}
        module = generator

        def call(z: Tensor) -> Tensor:
            return functional_call(module, cast, (z,))

    if batched:
        return lambda z: call(z).flatten(1)
    return vmap(lambda z: call(z).flatten())


def local_diffeomorphism(
    source: Source, z: Float[Tensor, "n d"] | None = None, *, tolerance: float = FULL_RANK
) -> LocalDiffeomorphism:
    """Share of points whose Jacobian has full column rank, and its singular values.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import local_diffeomorphism
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> local_diffeomorphism(lambda z: z.exp(), z).share
        1.0
        >>> local_diffeomorphism(lambda z: z[:, :1].repeat(1, 2), z).share  # forgets coordinate 1
        0.0
    """
    jacobians = jacobian_blocks(source, z)
    values = jacobians.singular_values.cpu().numpy()
    if values.shape[1] < jacobians.latent_dim:
        # Fewer outputs than latents: some direction of z is lost everywhere.
        values = np.pad(values, ((0, 0), (0, jacobians.latent_dim - values.shape[1])))
    smallest, largest = values[:, -1], np.maximum(values[:, 0], 1e-300)
    full = int((smallest > tolerance * largest).sum())
    condition = np.divide(largest, smallest, out=np.full_like(largest, np.inf), where=smallest > 0)
    return LocalDiffeomorphism(
        full / len(values), wilson_interval(full, len(values)), len(values), smallest, condition
    )


def _differentiate(
    generator: Generator, z: Float[Tensor, "n d"], chunk_size: int | None
) -> Float[Tensor, "n m d"]:
    if z.ndim != 2 or not z.numel():
        raise ValueError(f"points z are [n d] with at least one point, got {tuple(z.shape)}")
    with torch.no_grad():
        num_outputs = generator(z[:1]).shape[1]
        size = chunk_size or max(1, CHUNK_ELEMENTS // (num_outputs * z.shape[1]))
        derivative = jacfwd(lambda point: generator(point.unsqueeze(0)).squeeze(0))
        chunks = [vmap(derivative)(part) for part in z.split(size)]
    return torch.cat(chunks) if len(chunks) > 1 else chunks[0]


def _checked(blocks: Blocks, whole: JacobianBlocks) -> tuple[tuple[int, ...], ...]:
    found = tuple(tuple(int(i) for i in block) for block in blocks)
    if sorted(i for block in found for i in block) != list(range(whole.latent_dim)) or not all(found):
        raise ValueError(
            f"blocks must hold each of the {whole.latent_dim} latent coordinates once, got {found}"
        )
    return found


def _check_mode(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if part.training and isinstance(
            part, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd
        ):
            raise ValueError(
                f"{name or type(part).__name__} is in training mode, where samples depend on each other or "
                f"on chance: call .eval() on the generator first"
            )


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.detach().to(dtype) if value.is_floating_point() else value
