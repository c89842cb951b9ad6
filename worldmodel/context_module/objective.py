"""The evidence lower bound under interventions, in nats per picture.

    nll + beta KL(q(z | x) || N(0, I)) + tc TC(q(z)) + group_sparsity sum ||A_jk|| + l2 sum ||A_jk||^2

A_jk are the blocks of the causal layer, both sets of weights. Every batch is of one context, so that the
interventional weights of a concept get gradients from its own contexts only.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.context_module.data.types import ContextBatch, Do
from worldmodel.context_module.models.context_model import ContextModel
from worldmodel.context_module.models.context_module import ContextModule
from worldmodel.md_vae.gaussian import Gaussian, standard_kl
from worldmodel.mddiff.objectives.total_correlation import batch_total_correlation
from worldmodel.types import Losses


@dataclass(frozen=True)
class ContextObjective:
    """Weights of the terms added to the likelihood."""

    beta: float = 1.0  # of the KL term
    total_correlation: float = 0.0  # of the total correlation of the batch; beta - 1 makes a beta-TCVAE
    group_sparsity: float = 0.0  # of the norms of causal blocks
    l2: float = 0.0  # of their squared norms

    def __post_init__(self) -> None:
        if min(self.beta, self.total_correlation, self.group_sparsity, self.l2) < 0:
            raise ValueError(f"weights must be >= 0, got {self}")


@dataclass(frozen=True)
class Elbo:
    """The two terms of the bound, and what they were computed from."""

    nll: Float[Tensor, " n"]
    kl: Float[Tensor, " n"]
    posterior: Gaussian
    z: Float[Tensor, "n z"]


def elbo(model: ContextModel, images: UInt8[Tensor, "n 3 H W"], do: Do, generator: torch.Generator) -> Elbo:
    """The bound for pictures of one context, with one sample of z each."""
    pixels = model.host.pixels(images)
    posterior = model.posterior(pixels)
    noise = torch.randn(posterior.mean.shape, generator=generator)
    z = posterior.sample(noise.to(pixels.device))
    return Elbo(model.host.nll(pixels, model.decode(z, do)), standard_kl(posterior), posterior, z)


def context_step(
    model: ContextModel,
    batch: ContextBatch,
    generator: torch.Generator,
    objective: ContextObjective,
    num_pictures: int,
) -> Losses:
    """The loss of one batch; `num_pictures` is the size of the dataset, for the total correlation."""
    model.project()
    bound = elbo(model, batch.images, batch.do, generator)
    parts = {"nll": bound.nll.mean(), "kl": bound.kl.mean()}
    total = parts["nll"] + objective.beta * parts["kl"]
    if objective.total_correlation:
        parts["total_correlation"] = batch_total_correlation(bound.z, bound.posterior, num_pictures)
        total = total + objective.total_correlation * parts["total_correlation"]
    if isinstance(model.module, ContextModule) and (objective.group_sparsity or objective.l2):
        norms = model.module.causal.group_norms()
        parts["causal_size"] = norms.sum()
        total = total + objective.group_sparsity * norms.sum() + objective.l2 * norms.square().sum()
    return Losses(total, {name: part.detach() for name, part in parts.items()})
