"""Mechanistic contrastive learning (MCL): make G(z, u) respond to z in a way that tells conditions u apart.

    x_hat = G(z, u),  g = d c(x_hat, z, u) / dz,  q = P_g(g),  k = P_u(u),  loss = InfoNCE(q, k)

with a critic c and two projection heads P_g, P_u. Any differentiable conditional generator can be the host.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.mcl.config import DIRECTIONAL, MclConfig
from worldmodel.mcl.critics import Critic
from worldmodel.mcl.features import (
    DIRECTION_SEED,
    Generator,
    JointPass,
    critic_scores,
    derivative_along,
    differentiable,
    directional_derivative,
    finite_difference,
    hessian_diagonal,
    output_score_loss,
    random_normal,
    random_signs,
    score_gradient,
    shared_direction,
)
from worldmodel.mcl.info_nce import Contrast, contrast_keys, contrast_pairs, masked_mean
from worldmodel.mcl.rows import (
    MclOutput,
    Paths,
    Rows,
    clip_rows,
    full_precision,
    is_half_precision,
    scale_gradient,
    unit_rows,
)


class MechanisticContrast(nn.Module):
    """The MCL loss with its critic and heads: `mcl(generator, z, u) -> MclOutput`.

    Examples:
        >>> import torch
        >>> from worldmodel import MclConfig, MechanisticContrast
        >>> from worldmodel.mcl.critics import ProjectionHead, VectorCritic
        >>> mcl = MechanisticContrast(
        ...     MclConfig(mode="exact"), VectorCritic(3, 4, 2), ProjectionHead(3), ProjectionHead(2)
        ... )
        >>> decoder = torch.nn.Linear(5, 4)
        >>> def generator(z, u):
        ...     return decoder(torch.cat([z, u], -1)).tanh()
        >>> output = mcl(generator, torch.randn(8, 3), torch.randn(8, 2))
        >>> bool(output.loss > 0)
        True

    References:
        "Factored Generative Models through Mechanism Diversity", Algorithms 1 and 2.
    """

    def __init__(
        self,
        config: MclConfig,
        critic: Critic,
        gradient_head: nn.Module,
        condition_head: nn.Module,
        auxiliary_heads: Mapping[str, tuple[nn.Module, nn.Module]] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.critic = critic
        self.gradient_head = gradient_head
        self.condition_head = condition_head
        pairs = {name: nn.ModuleList(pair) for name, pair in (auxiliary_heads or {}).items()}
        self.auxiliary_heads = nn.ModuleDict(pairs)

    def forward(
        self,
        generator: Generator,
        z: Float[Tensor, "..."],
        u: Float[Tensor, "..."],
        *,
        u_for_g: Float[Tensor, "..."] | None = None,
        x_hat: Float[Tensor, "..."] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        also: Mapping[str, Float[Tensor, "..."]] | None = None,
        joint_pass: JointPass | None = None,
        is_half: bool = False,
        rng: torch.Generator | None = None,
    ) -> MclOutput:
        """The loss of one batch.

        Args:
            generator: G(z, u) -> x_hat, differentiable in z.
            z: latent of the host: [b d], an image latent, or [b c f h w] with a LatentVideoCritic.
            u: condition used as contrastive key, [b a], or [b f a] for video.
            u_for_g: condition given to generator and critic when it differs from the key.
            x_hat: G(z, u) if the host has it already: saves one forward. In the gradient modes it must come
                from this z, which must require grad, under `math_attention()` where `needs_math_attention`.
                A z with a graph of its own then needs `through_latent`: x_hat leads back into it.
            mask: rows that take part, shaped like u without its last axis; all by default.
            is_half: the generator computes in half precision, although z is not and autocast is off.
            also: keys of the auxiliary heads, shaped like u with a last axis of their own.
            joint_pass: for first_order; z runs there once more, and x_hat serves the features alone.
            rng: source of directions, probes, noise and shuffles.
        """
        config, u_for_g = self.config, u if u_for_g is None else u_for_g
        if x_hat is not None and z.grad_fn is not None and not config.through_latent:
            raise ValueError(
                "mcl with x_hat given trains whatever z was computed from: set through_latent, detach z "
                "before x_hat is made from it, or leave x_hat out"
            )
        keys = self.critic.condition_rows(u)
        valid = torch.ones_like(u[..., 0], dtype=torch.bool) if mask is None else mask
        valid = self.critic.condition_rows(valid.unsqueeze(-1)).squeeze(-1)
        if config.variant == "nce":
            z = z if config.through_latent else z.detach()
            x_hat = generator(z, u_for_g) if x_hat is None else x_hat
            contrast = contrast_pairs(self.critic, x_hat, z, u, u_for_g, valid, config.tolerance, rng)
            unknown = torch.full_like(contrast.loss, torch.nan)
            norm = unknown.unsqueeze(-1).expand(valid.shape)
            return self._output(contrast, norm, valid, Paths(*[unknown] * 3))
        if config.variant in ("fisher", "denoising"):
            return self._score_matching(generator, z, u_for_g, x_hat, valid, rng)
        others = {name: self.critic.condition_rows(key) for name, key in (also or {}).items()}
        rows = Rows(keys, valid, others)
        learned: float | Tensor = 0.0
        if config.critic == "score_matched":
            with torch.enable_grad():
                z, x_hat = differentiable(self.config, generator, z, u_for_g, x_hat)
                dims = self._sample_dims(x_hat)
                row_loss = output_score_loss(config, self.critic, x_hat, z, u_for_g, dims, rng)
                learned = masked_mean(row_loss, valid)
        if config.mode == "first_order":
            output = self._first_order(generator, z, u_for_g, x_hat, rows, joint_pass, is_half, rng)
        else:
            feature, norm, paths = self._feature(generator, z, u_for_g, x_hat, rows, is_half, rng)
            output = self._output(self._contrast(feature, rows), norm, valid, paths)
        return dataclasses.replace(output, loss=output.loss + learned)

    def _contrast(self, feature: Tensor, rows: Rows, *, is_measured: bool = False) -> Contrast:
        """InfoNCE over the rows of all processes; while evaluating or measuring, over those of this one."""
        heads = [(self.gradient_head, self.condition_head)]
        for pair in self.auxiliary_heads.values():
            assert isinstance(pair, nn.ModuleList), type(pair)
            heads.append((pair[0], pair[1]))
        keys = [rows.keys, *(rows.also[name] for name in self.auxiliary_heads)]
        gathers = self.training and not is_measured
        contrast = contrast_keys(self.config, feature, heads, keys, rows.valid, gathers=gathers)
        return dataclasses.replace(contrast, loss=scale_gradient(contrast.loss)) if gathers else contrast

    def _paths(self, gradient: Tensor, z: Tensor, x_hat: Tensor, u: Tensor, rows: Rows) -> Paths | None:
        """What of a critic's gradient comes through the generator, and what each part tells of u."""
        if self.config.variant == "jacobian_vjp":
            return None
        gradient, seen = gradient.detach(), z.detach()
        direct = torch.zeros_like(seen)
        if not self.config.hidden_inputs[0]:
            leaf = seen.clone().requires_grad_()
            direct = score_gradient(self._scores(x_hat.detach(), leaf, u, None), leaf, create_graph=False)
        norms = [self.critic.rows(part).norm(dim=-1) for part in (gradient - direct, direct)]
        share = norms[0] / (norms[0] + norms[1]).clamp(min=torch.finfo(gradient.dtype).tiny)
        by_generator = torch.full_like(masked_mean(share, rows.valid), torch.nan)
        if not self.training:
            axes = (-2,) if self._sample_dims(z) == 1 else tuple(range(u.ndim - 1))
            scores = self._scores(x_hat, seen, u.mean(axes, keepdim=True).expand_as(u), None)
            by_generator = self._accuracy(score_gradient(scores, z, create_graph=False), rows)
        return Paths(self._accuracy(direct, rows), by_generator, masked_mean(share, rows.valid))

    def _accuracy(self, gradient: Tensor, rows: Rows) -> Tensor:
        with torch.no_grad():
            feature, _ = self._scaled(gradient)
            if self.config.mode == "hessian_diag":
                feature = torch.cat([feature, torch.zeros_like(feature)], dim=-1)
            return self._contrast(feature, rows, is_measured=True).accuracy

    def _first_order(
        self,
        generator: Generator,
        z: Tensor,
        u: Tensor,
        x_hat: Tensor | None,
        rows: Rows,
        joint_pass: JointPass | None,
        is_half: bool,
        rng: torch.Generator | None,
    ) -> MclOutput:
        """The loss of mode exact, L(g), with its gradients and without a second derivative.

        With v = dL/dg held constant, dL/dtheta = d/dtheta sum(v * g). And v * g is the derivative of the
        score along v: a difference of scores at two points, differentiated once.
        """
        trains = torch.is_grad_enabled()
        with torch.enable_grad():
            z, x_hat = differentiable(self.config, generator, z, u, x_hat)
            sample_dims, outer = self._sample_dims(z), self._output_direction(x_hat, rng)

            def score(latent: Tensor, output: Tensor) -> Tensor:
                scores = self._scores(output, latent, u, outer)
                return scores.reshape(*z.shape[: z.ndim - sample_dims], -1).sum(-1)

            gradient = score_gradient(score(z, x_hat), z, create_graph=False).requires_grad_()
            paths = self._paths(gradient, z, x_hat, u, rows)
            feature, norm = self._scaled(gradient)
            contrast = self._contrast(self._shown(feature, outer), rows)
            if not trains:
                return self._output(contrast, norm, rows.valid, paths)
            (direction,) = torch.autograd.grad(contrast.loss.sum(), gradient, retain_graph=True)
            latent = z if self.config.through_latent else z.detach()
            is_half = is_half or is_half_precision(z)

            def scores(points: Sequence[Tensor]) -> list[Tensor]:
                made = joint_pass(points) if joint_pass else [x_hat, *(generator(at, u) for at in points)]
                return [score(at, output) for at, output in zip([latent, *points], made, strict=True)]

            step, is_central = self.config.step_size(is_half), self.config.is_central(is_half)
            along = derivative_along(
                scores, latent, direction, sample_dims, step=step, is_central=is_central, rng=rng
            )
            lead = along.sum(tuple(range(contrast.loss.ndim, along.ndim)))
        loss = contrast.loss + (lead - lead.detach())
        return self._output(dataclasses.replace(contrast, loss=loss), norm, rows.valid, paths)

    def optimizer_group(self, host_lr: float) -> dict[str, Any]:
        """Critic and heads as one parameter group with their own learning rate."""
        return {"params": list(self.parameters()), "lr": self.config.head_lr or host_lr}

    def _feature(
        self,
        generator: Generator,
        z: Tensor,
        u: Tensor,
        x_hat: Tensor | None,
        rows: Rows,
        is_half: bool,
        rng: torch.Generator | None,
    ) -> tuple[Tensor, Tensor, Paths | None]:
        """Clipped mechanism feature, its norm before clipping, row by row, and its paths."""
        config = self.config
        if config.mode == "latent":
            feature, norm = self._scaled(z if config.through_latent else z.detach())
            unused = self._contrast(feature.detach(), rows, is_measured=True)
            return feature, norm, Paths(unused.accuracy, unused.chance, torch.zeros_like(unused.chance))
        if config.mode in DIRECTIONAL:
            z = z if config.through_latent else z.detach()
            direction = self._direction(z, rng)
            if config.mode == "jvp":
                response = directional_derivative(generator, z, u, direction)
            else:
                response = finite_difference(
                    generator, z, u, direction, config.step_size(is_half or is_half_precision(z)), x_hat
                )
            feature, norm = self._scaled(response)
            return self._shown(feature, direction), norm, None
        is_trained = torch.is_grad_enabled() and config.mode != "detached"
        with torch.enable_grad():
            z, x_hat = differentiable(self.config, generator, z, u, x_hat)
            outer = self._output_direction(x_hat, rng)
            needs_graph = is_trained or config.mode == "hessian_diag"
            gradient = score_gradient(self._scores(x_hat, z, u, outer), z, create_graph=needs_graph)
            paths = self._paths(gradient, z, x_hat, u, rows)
            feature, norm = self._scaled(gradient)
            if config.mode == "hessian_diag":
                curvature = hessian_diagonal(gradient, z, config.num_probes, self._sample_dims(z), rng)
                feature = torch.cat([feature, self._scaled(curvature)[0]], dim=-1)
        return self._shown(feature, outer), norm, paths

    def _scaled(self, response: Tensor) -> tuple[Tensor, Tensor]:
        """One row per transition, scaled as the config asks for the projection head, and its norm before."""
        rows, config = self.critic.rows(response), self.config
        return unit_rows(rows) if config.scale == "unit" else clip_rows(rows, config.clip_norm)

    def _scores(self, x_hat: Tensor, z: Tensor, u: Tensor, outer: Tensor | None) -> Tensor:
        """What is differentiated by z: the critic's scores, or x_hat along a direction (jacobian_vjp)."""
        # In full precision, which costs little: what is trained are differences of its gradients.
        x_hat, z, u = (full_precision(tensor) for tensor in (x_hat, z, u))
        with torch.autocast(x_hat.device.type, enabled=False):
            if outer is not None:
                return x_hat * outer
            return critic_scores(self.config, self.critic, x_hat, z, u)

    def _output_direction(self, x_hat: Tensor, rng: torch.Generator | None) -> Tensor | None:
        return self._direction(x_hat.detach(), rng) if self.config.variant == "jacobian_vjp" else None

    def _direction(self, like: Tensor, rng: torch.Generator | None) -> Tensor:
        if self.config.direction == "fixed":  # seeded alike at each call and in each process
            rng = torch.Generator().manual_seed(DIRECTION_SEED)
        return shared_direction(like, self.critic, rng)

    def _shown(self, feature: Tensor, direction: Tensor | None) -> Tensor:
        """The feature, with the direction it was taken along where the head is to see it."""
        if direction is None or self.config.direction != "given":
            return feature
        return torch.cat([feature, self.critic.rows(direction)], dim=-1)

    def _sample_dims(self, z: Tensor) -> int:
        # Vector hosts may carry further batch axes in front; elsewhere all axes but the first are one sample:
        # the frames of a video interact in G.
        return 1 if self.critic.rows(z).shape == z.shape else z.ndim - 1

    def _score_matching(
        self,
        generator: Generator,
        z: Tensor,
        u: Tensor,
        x_hat: Tensor | None,
        valid: Tensor,
        rng: torch.Generator | None,
    ) -> MclOutput:
        """Train dc/dz as the score of z: Hyvarinen's loss with a Hutchinson probe, or against added noise."""
        critic, std, noise = self.critic, self.config.noise_std, torch.zeros_like(z)
        if self.config.variant == "denoising":
            noise, x_hat = random_normal(z, self._sample_dims(z), rng), None
            z = z + std * noise
        with torch.enable_grad():
            z, x_hat = differentiable(self.config, generator, z, u, x_hat)
            score = score_gradient(critic(x_hat, z, u), z, create_graph=True)
            if self.config.variant == "denoising":
                row_loss = critic.rows(std * score + noise).square().sum(-1) / 2
            else:
                probe = random_signs(z, self._sample_dims(z), rng)
                trace = probe * torch.autograd.grad((score * probe).sum(), z, create_graph=True)[0]
                row_loss = critic.rows(score.square() / 2 + trace).sum(-1)
        loss = masked_mean(row_loss, valid)
        unknown, norm = [torch.full_like(loss, torch.nan)] * 4, critic.rows(score).norm(dim=-1)
        return self._output(Contrast(loss, *unknown), norm, valid, Paths(*unknown[1:]))

    def _output(self, contrast: Contrast, norm: Tensor, valid: Tensor, paths: Paths | None) -> MclOutput:
        clip = self.config.clip_norm
        if paths is None:  # the generator alone is differentiated
            paths = Paths(contrast.chance, contrast.accuracy, torch.ones_like(contrast.accuracy))
        return MclOutput(
            loss=contrast.loss,
            accuracy=contrast.accuracy,
            floor=contrast.floor,
            chance=contrast.chance,
            chance_high=contrast.chance_high,
            accuracy_direct=paths.accuracy_direct,
            accuracy_generator=paths.accuracy_generator,
            generator_share=paths.share,
            gradient_norm=masked_mean(norm.detach(), valid),
            clipped=masked_mean(((norm > clip) & bool(clip and self.config.scale == "raw")).float(), valid),
        )
