"""The context module: a layer between latent and decoder that applies interventions on concepts.

    z [b m*i] --noise layer--> --expressive layers--> n [b m o] --causal layer--> c [b m o] --unpool--> [b d]

Each of m concepts owns a block of z. Under do(I)

    noise layer        block k: GELU(W_k z_k); W_k are interventional weights for k in I, else observational
    expressive layers  block by block, the same in every context
    causal layer       c_j = n_j + sum over k != j of A_jk n_k; no sum for j in I, and other A_jk for k in I

so that a concept in I depends on its own block alone. Sets absent from training need no other parameters.
After "Intervening to learn and compose causally disentangled representations" (arXiv 2507.04754).

Axes: b batch, m concepts, i and o width of a block of z and of c, d decoder input, t to, f from a concept.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.checked import check_ranges
from worldmodel.context_module.data.types import check_do
from worldmodel.context_module.models.block_layers import CausalLayer, ExpressiveLayer, NoiseLayer

Interventions = Iterable[int] | Bool[Tensor, "b m"]


@dataclass(frozen=True)
class ContextModuleConfig:
    """Sizes, and an option wherever the paper is ambiguous or differs from its code."""

    num_concepts: int = 6  # m
    in_width: int = 32  # i, latent dimensions of a concept
    out_width: int = 8  # o, dimensions of a concept's code
    depth: int = 2  # widths from in_width to out_width, both ends counted: depth - 1 expressive layers
    mask_observational: bool = True  # block-diagonal observational noise (text); false: full (code)
    norm: Literal["batch", "none"] = "batch"  # in expressive layers; batch statistics are of one context
    causal: Literal["reduced", "structural", "none"] = "reduced"  # total effects; edges in order; no effects
    ancestors: Literal["all", "earlier"] = "all"  # reduced: which concepts may act on a concept
    effects: Literal["switched", "shared"] = "switched"  # of an intervened concept: separate weights?
    clamp: bool = True  # keep causal weights in [0, 1]
    start: Literal["random", "identity"] = "random"  # identity: z passes unchanged until training

    def __post_init__(self) -> None:
        check_ranges(self, num_concepts=(1, 1024), in_width=(1, 4096), out_width=(1, 4096), depth=(1, 64))
        if self.depth == 1 and self.in_width != self.out_width:
            raise ValueError(f"depth 1 has one width: {self.in_width} and {self.out_width} must be equal")
        if self.start == "identity" and (self.in_width != self.out_width or self.norm != "none"):
            raise ValueError(
                "start=identity needs in_width = out_width and norm=none, "
                f"got {self.in_width}, {self.out_width} and norm={self.norm}"
            )

    @property
    def latent_dim(self) -> int:
        """Size of z."""
        return self.num_concepts * self.in_width


def block_widths(config: ContextModuleConfig) -> tuple[int, ...]:
    """Widths of a concept's block, from the latent to the code."""
    return tuple(np.linspace(config.in_width, config.out_width, config.depth).round().astype(int).tolist())


class ContextModule(nn.Module):
    """Latent to decoder input under any set of interventions.

    Examples:
        >>> import torch
        >>> from worldmodel import ContextModule
        >>> from worldmodel.context_module.models.context_module import ContextModuleConfig
        >>> config = ContextModuleConfig(num_concepts=3, in_width=4, out_width=4, norm="none")
        >>> module = ContextModule(config, out_dim=16)
        >>> z = torch.randn(2, 12)  # three blocks of four
        >>> module(z, do=(0, 2)).shape  # concepts 0 and 2 intervened on
        torch.Size([2, 16])
        >>> torch.equal(module(z, do=(0, 2)), module(z, do=(2, 0)))
        True
        >>> each = torch.tensor([[True, False, True], [False, False, False]])  # a context for each sample
        >>> torch.allclose(module(z, do=each)[:1], module(z[:1], do=(0, 2)), atol=1e-6)
        True

    References:
        "Intervening to Learn and Compose Causally Disentangled Representations", 2025.
    """

    def __init__(self, config: ContextModuleConfig, out_dim: int) -> None:
        super().__init__()
        self.config = config
        count, widths, is_identity = config.num_concepts, block_widths(config), config.start == "identity"
        self.noise = NoiseLayer(count, widths[0], config.mask_observational, is_identity)
        self.expressive = nn.Sequential(
            *(
                ExpressiveLayer(count, before, after, config.norm == "batch", is_identity)
                for before, after in itertools.pairwise(widths)
            )
        )
        self.causal = CausalLayer(
            count,
            widths[-1],
            form=config.causal,
            ancestors=config.ancestors,
            has_switch=config.effects == "switched",
            is_clamped=config.clamp,
            is_zero=is_identity,
        )
        self.unpool = nn.Linear(count * widths[-1], out_dim)
        if is_identity:
            _start_as_identity(self.unpool)

    def forward(self, z: Float[Tensor, "b z"], do: Interventions = ()) -> Float[Tensor, "b d"]:
        """Decoder input under do, given as concept numbers or as a mask for each sample."""
        decoder_input: Tensor = self.unpool(self.codes(z, do).flatten(1))
        return decoder_input

    def noises(self, z: Float[Tensor, "b z"], do: Interventions = ()) -> Float[Tensor, "b m o"]:
        """n: each concept before the effects of the others."""
        if z.shape[1] != self.config.latent_dim:
            raise ValueError(
                f"this module takes latents of {self.config.latent_dim} ({self.config.num_concepts} concepts "
                f"of {self.config.in_width}), got {z.shape[1]}"
            )
        blocks = z.unflatten(1, (self.config.num_concepts, self.config.in_width))
        noises: Tensor = self.expressive(self.noise(blocks, self.mask(do)))
        return noises

    def codes(self, z: Float[Tensor, "b z"], do: Interventions = ()) -> Float[Tensor, "b m o"]:
        """c: the concepts."""
        codes: Tensor = self.causal(self.noises(z, do), self.mask(do))
        return codes

    def mask(self, do: Interventions) -> Bool[Tensor, "*b m"]:
        """Mask of the concepts that are intervened on."""
        if isinstance(do, Tensor):
            if do.dtype != torch.bool or do.ndim != 2 or do.shape[1] != self.config.num_concepts:
                raise ValueError(
                    f"expected truth values [samples {self.config.num_concepts}], got {do.dtype} "
                    f"{list(do.shape)}"
                )
            return do
        mask = torch.zeros(self.config.num_concepts, dtype=torch.bool)
        mask[list(check_do(do, self.config.num_concepts))] = True
        return mask.to(self.unpool.weight.device)

    @torch.no_grad()
    def project(self) -> None:
        """Project causal weights back into [0, 1]; training calls it before every step."""
        self.causal.project()

    def directions(self) -> Float[Tensor, "m o d"]:
        """Derivative of the decoder input with respect to each dimension of each code."""
        return self.unpool.weight.detach().T.unflatten(0, (self.config.num_concepts, -1))


def _start_as_identity(linear: nn.Linear) -> None:
    """Initialize so that the first inputs become the outputs; there must be enough inputs."""
    if linear.in_features < linear.out_features:
        raise ValueError(
            f"start=identity needs at least {linear.out_features} dimensions for the decoder's input, "
            f"the concepts have {linear.in_features} in all: set a larger out_width"
        )
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
