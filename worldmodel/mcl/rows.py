"""The rows that are contrasted, with their keys, scale and precision, and what comes out."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The keys of a batch's mechanism features, row by row."""

    keys: Float[Tensor, "*s n a"]
    valid: Bool[Tensor, "*s n"]  # rows that take part
    also: dict[str, Float[Tensor, "*s n b"]]  # further keys, for the auxiliary heads


def is_half_precision(z: Tensor) -> bool:
    """Whether the generator computes in half precision, judging by its input and autocast."""
    return z.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(z.device.type)


def full_precision(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in more if it has more."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def clip_rows(
    rows: Float[Tensor, "*s n d"], max_norm: float
) -> tuple[Float[Tensor, "*s n d"], Float[Tensor, "*s n"]]:
    """Rows shortened to at most `max_norm` (0 = unchanged), and their norms before."""
    # The clamp keeps the gradient finite at 0, the feature of a generator that ignores z.
    norm = rows.square().sum(-1).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    if max_norm:
        rows = rows * (max_norm / norm).clamp(max=1).unsqueeze(-1)
    return rows, norm


def unit_rows(rows: Float[Tensor, "*s n d"]) -> tuple[Float[Tensor, "*s n d"], Float[Tensor, "*s n"]]:
    """Rows scaled to unit root mean square, and their norms before; rows of zeros stay zero."""
    norm = rows.square().sum(-1).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    return rows * (rows.shape[-1] ** 0.5 / norm).unsqueeze(-1), norm


@dataclass(frozen=True)
class MclOutput:
    """One value per independent batch: scalars, unless several seeds train side by side."""

    loss: Float[Tensor, "*s"]
    accuracy: Float[Tensor, "*s"]  # share of rows that find their own condition; nan for score matching
    floor: Float[Tensor, "*s"]  # what the loss tends to at best, given repeated conditions
    chance: Float[Tensor, "*s"]  # the accuracy of guessing; nan for score matching
    chance_high: Float[Tensor, "*s"]  # what guessing stays below; nan for score matching
    # The direct path is that of z into the critic. The next two are nan for nce and score matching.
    accuracy_direct: Float[Tensor, "*s"]  # with x_hat detached; chance where there is no direct path
    # With the critic given z detached and the mean u: by the generator's use of u alone. It costs a backward
    # pass through the generator; for gradients it is nan while training.
    accuracy_generator: Float[Tensor, "*s"]
    generator_share: Float[Tensor, "*s"]  # of the feature's norm, mean over rows; the rest is the direct path
    gradient_norm: Float[Tensor, "*s"]  # mean norm of a row's mechanism feature before clipping; nan for nce
    clipped: Float[Tensor, "*s"]  # share of rows that were clipped


@dataclass(frozen=True)
class Paths:
    """How well the parts of a feature tell the condition."""

    accuracy_direct: Float[Tensor, "*s"]
    accuracy_generator: Float[Tensor, "*s"]  # nan: not measured
    share: Float[Tensor, "*s"]


def few_rows(wanted: int, count: int) -> str:
    """Why a contrast of `count` rows is refused."""
    return (
        f"mcl.rows={wanted} rows are to be contrasted, an optimizer step has {count}: raise fit.global_batch "
        "or mcl.share, or lower mcl.rows"
    )


def mcl_metrics(output: MclOutput) -> dict[str, float]:
    """The output as floats for a log, mean over independent batches."""
    names = [field.name for field in dataclasses.fields(output)]
    return {name: float(getattr(output, name).detach().mean()) for name in names}
