"""How a conditional generator x_hat = G(z, u) responds to z, as a tensor that a loss can use.

Gradient features differentiate a critic's score with respect to z; directional features differentiate the
generator itself along one direction of z shared by all rows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from worldmodel.mcl.config import MclConfig
from worldmodel.mcl.critics import Critic
from worldmodel.mcl.rows import full_precision

Generator = Callable[[Tensor, Tensor], Tensor]  # (z, u) -> x_hat
# Further latents -> x_hat at z and at each of them, in one pass of the host's own.
JointPass = Callable[[Sequence[Tensor]], Sequence[Tensor]]
DIRECTION_SEED = 0  # of directions that are the same throughout a run
# What sharded training puts around a backward pass that runs inside the forward pass.
inner_backward: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar(
    "inner_backward", default=nullcontext
)


@contextmanager
def math_attention() -> Iterator[None]:
    """Attention with all its derivatives: the fused kernels lack the second one and forward mode."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def score_gradient(
    scores: Float[Tensor, "..."], z: Float[Tensor, "*shape"], *, create_graph: bool
) -> Float[Tensor, "*shape"]:
    """Derivative of sum(scores) by z; the graph of the scores is kept for the host's own loss."""
    with inner_backward.get()():
        return torch.autograd.grad(
            scores.sum(), z, create_graph=create_graph, retain_graph=True, materialize_grads=True
        )[0]


def differentiable(
    config: MclConfig,
    generator: Generator,
    z: Float[Tensor, "*shape"],
    u: Float[Tensor, "..."],
    x_hat: Tensor | None,
) -> tuple[Float[Tensor, "*shape"], Tensor]:
    """The latent, made to require grad, and x_hat computed from it."""
    if x_hat is not None:
        if not z.requires_grad:
            raise ValueError(
                f"mcl mode {config.mode} with x_hat given needs the z it came from to require grad"
            )
        return z, x_hat
    if not (config.through_latent and z.requires_grad):
        z = z.detach().requires_grad_(True)
    with math_attention() if config.needs_math_attention else nullcontext():
        return z, generator(z, u)


def critic_scores(
    config: MclConfig,
    critic: Critic,
    x_hat: Float[Tensor, "..."],
    z: Float[Tensor, "..."],
    u: Float[Tensor, "..."],
) -> Tensor:
    """The critic's scores of what it may see; its weights are constants unless the contrast trains them."""
    hides_z, hides_u = config.hidden_inputs
    z, u = torch.zeros_like(z) if hides_z else z, torch.zeros_like(u) if hides_u else u
    if config.critic == "trained" or not isinstance(critic, nn.Module):
        return critic(x_hat, z, u)
    constant = {name: weight.detach() for name, weight in critic.named_parameters()}
    scores: Tensor = functional_call(critic, constant, (x_hat, z, u))
    return scores


def output_score_loss(
    config: MclConfig,
    critic: Critic,
    x_hat: Float[Tensor, "..."],
    z: Float[Tensor, "..."],
    u: Float[Tensor, "..."],
    sample_dims: int,
    rng: torch.Generator | None,
) -> Float[Tensor, "*s n"]:
    """Denoising loss of each row that makes dc/dx the score of x_hat given u, so c becomes log p(x_hat | u).

    z is hidden; the noise has the config's `noise_std` times the spread of x_hat.
    """
    x, z, u = (full_precision(tensor.detach()) for tensor in (x_hat, z, u))
    u = torch.zeros_like(u) if config.hidden_inputs[1] else u
    std = config.noise_std * x.std(tuple(range(x.ndim - sample_dims - 1, x.ndim)), keepdim=True)
    noise = random_normal(x, sample_dims, rng)
    with torch.autocast(x.device.type, enabled=False):
        x = (x + std * noise).requires_grad_()
        score = score_gradient(critic(x, torch.zeros_like(z), u), x, create_graph=True)
        return critic.rows(std * score + noise).square().sum(-1) / 2


def derivative_along(
    scores: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    z: Float[Tensor, "*shape"],
    direction: Float[Tensor, "*shape"],
    sample_dims: int,
    *,
    step: float,
    is_central: bool = True,
    rng: torch.Generator | None = None,
) -> Float[Tensor, "..."]:
    """sum(direction * d score / dz) of each sample by differences: its parameter gradient is of first order.

    Every sample is moved by `step` in root mean square, which keeps rounding alike for all. One-sided, the
    sign of the move is drawn for each sample: on average the result is that of central differences.

    Args:
        scores: further points -> one score per sample at z and at each of them, the last `sample_dims` axes
            of z being one sample.
        z: where the derivative is taken.
        direction: along which it is taken.
        sample_dims: axes of one sample.
        step: root mean square displacement of an element of z.
        is_central: compare two points around z, or one with z.
        rng: source of the signs.
    """
    axes = tuple(range(z.ndim - sample_dims, z.ndim))
    size = direction.square().mean(axes, keepdim=True).sqrt()
    move = step * direction / size.clamp(min=torch.finfo(size.dtype).tiny)
    rate = size.reshape(size.shape[: z.ndim - sample_dims]) / step
    if is_central:
        _, ahead, behind = scores([z + move, z - move])
        return rate * (ahead - behind) / 2
    signs = random_signs(size, sample_dims, rng)
    base, moved = scores([z + signs * move])
    return rate * signs.reshape(rate.shape) * (moved - base)


def hessian_diagonal(
    gradient: Float[Tensor, "*shape"],
    z: Float[Tensor, "*shape"],
    num_probes: int,
    sample_dims: int,
    rng: torch.Generator | None,
) -> Float[Tensor, "*shape"]:
    """Diagonal of the Hessian: exact for 0 probes, else Hutchinson's mean(v * Hv) over random sign vectors v.

    The last `sample_dims` axes make up one sample; the exact diagonal costs one backward per element of it.
    """
    diagonal = torch.zeros_like(z)
    for probe in _probes(z, num_probes, sample_dims, rng):
        product = torch.autograd.grad((gradient * probe).sum(), z, create_graph=True)[0]
        diagonal = diagonal + probe * product
    return diagonal / max(num_probes, 1)


def _probes(z: Tensor, num_probes: int, sample_dims: int, rng: torch.Generator | None) -> Iterator[Tensor]:
    if num_probes:
        yield from (random_signs(z, sample_dims, rng) for _ in range(num_probes))
        return
    sample_shape = z.shape[z.ndim - sample_dims :]
    size = math.prod(sample_shape)
    for unit in torch.eye(size, dtype=z.dtype, device=z.device):
        yield unit.view(sample_shape).expand_as(z)


def random_signs(
    like: Float[Tensor, "*shape"], sample_dims: int, rng: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """Independent +1 / -1 entries, the same in every independent batch."""
    bits = torch.randint(0, 2, batch_shape(like, sample_dims), generator=rng)
    return (bits.to(like) * 2 - 1).expand_as(like)


def random_normal(
    like: Float[Tensor, "*shape"], sample_dims: int, rng: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """Independent N(0, 1) entries, the same in every independent batch."""
    drawn = torch.randn(batch_shape(like, sample_dims), generator=rng, dtype=like.dtype)
    return drawn.to(like.device).expand_as(like)


def batch_shape(like: Float[Tensor, "..."], sample_dims: int) -> torch.Size:
    """Shape of one batch of samples: draws of this shape do not depend on how many train side by side."""
    return like.shape[like.ndim - sample_dims - 1 :]


def shared_direction(
    like: Float[Tensor, "*shape"], critic: Critic, rng: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """One random unit vector of a row, the same for every row, in the shape of `like`; drawn from `rng`."""
    row = critic.rows(like)[..., :1, :]
    row = row[(0,) * (row.ndim - 2)]
    unit = torch.nn.functional.normalize(torch.randn(row.shape, generator=rng), dim=-1).to(like)
    # The transpose of the linear map `rows` puts a row back in its place; no critic has to say how.
    with torch.enable_grad():
        place = torch.zeros_like(like, requires_grad=True)
        rows = critic.rows(place)
        return torch.autograd.grad((rows * unit).sum(), place)[0]


def directional_derivative(
    generator: Generator,
    z: Float[Tensor, "*shape"],
    u: Float[Tensor, "..."],
    direction: Float[Tensor, "*shape"],
) -> Float[Tensor, "..."]:
    """J_G(z, u) v by forward-mode differentiation, itself differentiable in the generator's parameters."""
    with math_attention():
        primal_and_tangent = torch.func.jvp(lambda latent: generator(latent, u), (z,), (direction,))
    return primal_and_tangent[1]


def finite_difference(
    generator: Generator,
    z: Float[Tensor, "*shape"],
    u: Float[Tensor, "..."],
    direction: Float[Tensor, "*shape"],
    step: float,
    x_hat: Float[Tensor, "..."] | None,
) -> Float[Tensor, "..."]:
    """(G(z + h v, u) - G(z, u)) / h, with h such that `step` is the root mean square displacement of z."""
    length = step * direction.square().mean().rsqrt()
    base = generator(z, u) if x_hat is None else x_hat
    return (generator(z + length * direction, u) - base) / length
