"""Layers over blocks, one block per concept; axes and equations are in context_module.py.

`is_intervened` is [m], one context for all samples, or [b m], a context per sample.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class Activation(nn.Module):
    """GELU; or x + gate (GELU(x) - x) with a learned gate that starts at 0, so that x passes unchanged."""

    def __init__(self, is_gated: bool) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(())) if is_gated else None

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Same shape as the input."""
        bent = F.gelu(x)
        return bent if self.gate is None else x + self.gate * (bent - x)


class NoiseLayer(nn.Module):
    """GELU(W z), block by block, with observational and interventional weights for every concept."""

    def __init__(self, num_concepts: int, width: int, is_masked: bool, is_identity: bool) -> None:
        super().__init__()
        shape = (num_concepts, width, width) if is_masked else (num_concepts, width, num_concepts, width)
        self.observational = nn.Parameter(torch.empty(shape))
        self.interventional = nn.Parameter(torch.empty(num_concepts, width, width))
        self.activation = Activation(is_identity)
        for weight in (self.observational, self.interventional):
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5)
        if is_identity:
            self._start_as_identity()

    def forward(
        self, z: Float[Tensor, "b m i"], is_intervened: Bool[Tensor, "*b m"]
    ) -> Float[Tensor, "b m i"]:
        """The noise block of each concept."""
        if self.observational.ndim == 3:
            weight = torch.where(is_intervened[..., None, None], self.interventional, self.observational)
            mixed = torch.einsum("bmi,mio->bmo" if weight.ndim == 3 else "bmi,bmio->bmo", z, weight)
        else:
            free = torch.einsum("bfi,fito->bto", z, self.observational)
            own = torch.einsum("bmi,mio->bmo", z, self.interventional)
            mixed = torch.where(is_intervened[..., None], own, free)
        bent: Tensor = self.activation(mixed)
        return bent

    @torch.no_grad()
    def _start_as_identity(self) -> None:
        count, width, _ = self.interventional.shape
        self.interventional.copy_(torch.eye(width))
        if self.observational.ndim == 3:
            self.observational.copy_(torch.eye(width))
        else:
            self.observational.copy_(torch.eye(count * width).view_as(self.observational))


class ExpressiveLayer(nn.Module):
    """Linear, batch norm and GELU, separate for every concept."""

    def __init__(
        self, num_concepts: int, in_width: int, out_width: int, has_norm: bool, is_identity: bool
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_concepts, in_width, out_width))
        self.bias = nn.Parameter(torch.empty(num_concepts, out_width))
        self.norm = nn.BatchNorm1d(num_concepts * out_width) if has_norm else None
        self.activation = Activation(is_identity)
        for parameter in (self.weight, self.bias):
            nn.init.uniform_(parameter, -(in_width**-0.5), in_width**-0.5)
        if is_identity:
            with torch.no_grad():
                self.weight.copy_(torch.eye(in_width))
                self.bias.zero_()

    def forward(self, blocks: Float[Tensor, "b m i"]) -> Float[Tensor, "b m o"]:
        """Blocks of the output width."""
        x = torch.einsum("bmi,mio->bmo", blocks, self.weight) + self.bias
        if self.norm is not None:
            x = self.norm(x.flatten(1)).view_as(x)
        bent: Tensor = self.activation(x)
        return bent


class CausalLayer(nn.Module):
    """Effects of concepts on each other: the diagonal is the identity, the other blocks are learned.

    reduced c_j = n_j + sum_k A_jk n_k A holds total effects structural c_j = n_j + sum_{k < j} A_jk c_k A
    holds edges; concepts are in causal order
    """

    allowed: Tensor  # [t f], whether f may act on t

    def __init__(
        self,
        num_concepts: int,
        width: int,
        *,
        form: Literal["reduced", "structural", "none"],
        ancestors: Literal["all", "earlier"],
        has_switch: bool,
        is_clamped: bool,
        is_zero: bool,
    ) -> None:
        super().__init__()
        self.form, self.is_clamped = form, is_clamped
        allowed = ~torch.eye(num_concepts, dtype=torch.bool)
        if ancestors == "earlier" or form == "structural":
            allowed = allowed.tril()
        self.register_buffer("allowed", allowed, persistent=False)
        shape = (num_concepts, num_concepts, width, width)
        bound = 0.0 if is_zero else (max(num_concepts - 1, 1) * width) ** -0.5
        weights = [torch.empty(shape).uniform_(-bound, bound) for _ in range(1 + has_switch)]
        has_weights = form != "none" and num_concepts > 1
        self.observational = nn.Parameter(weights[0]) if has_weights else None
        self.interventional = nn.Parameter(weights[1]) if has_weights and has_switch else None

    def forward(
        self, noises: Float[Tensor, "b m o"], is_intervened: Bool[Tensor, "*b m"]
    ) -> Float[Tensor, "b m o"]:
        """The concepts."""
        if self.observational is None:
            return noises
        effects = self.effects(is_intervened)
        each = "b" if effects.ndim == 5 else ""  # a context for each sample, or one for all
        if self.form == "reduced":
            return noises + torch.einsum(f"bfi,{each}tfio->bto", noises, effects)
        codes: list[Tensor] = []
        for number, own in enumerate(noises.unbind(1)):
            before = [
                torch.einsum(f"bi,{each}io->bo", code, effects[..., number, k, :, :])
                for k, code in enumerate(codes)
            ]
            codes.append(own + sum(before, torch.zeros_like(own)))
        return torch.stack(codes, 1)

    def effects(self, is_intervened: Bool[Tensor, "*b m"]) -> Float[Tensor, "*b t f o o"]:
        """A under do: rows of intervened concepts are zero, their columns use the interventional weights."""
        assert self.observational is not None, "concepts that do not act have no effects"
        weight: Tensor = self.observational
        if self.interventional is not None:
            weight = torch.where(is_intervened[..., None, :, None, None], self.interventional, weight)
        if self.is_clamped:
            weight = weight.clamp(0, 1)
        is_kept = self.allowed & ~is_intervened[..., None]
        return torch.where(is_kept[..., None, None], weight, 0)

    def weights(self) -> list[nn.Parameter]:
        """The learned parameters."""
        return [weight for weight in (self.observational, self.interventional) if weight is not None]

    @torch.no_grad()
    def project(self) -> None:
        """Clamp the weights themselves to [0, 1], so that gradients can move them back inside."""
        if self.is_clamped:
            for weight in self.weights():
                weight.clamp_(0, 1)

    def group_norms(self) -> Float[Tensor, " edges"]:
        """Norm of every block that may be used: their sum is the group-sparsity penalty."""
        blocks = [weight[self.allowed].flatten(1) for weight in self.weights()]
        if not blocks:
            return torch.zeros(0, device=self.allowed.device)
        # The epsilon keeps the gradient of the square root finite at blocks that the penalty has set to 0.
        return (torch.cat(blocks).square().sum(1) + 1e-12).sqrt()
