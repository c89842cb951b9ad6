"""What decides how mechanistic contrastive learning (MCL) reads a mechanism and contrasts it."""

from dataclasses import dataclass
from typing import Literal

from worldmodel.mcl.info_nce import Negatives

Mode = Literal["exact", "detached", "jvp", "finite_difference", "hessian_diag"]
Variant = Literal["infonce", "nce", "fisher", "denoising", "jacobian_vjp"]
DIRECTIONAL: tuple[Mode, ...] = ("jvp", "finite_difference")
MODES_OF_VARIANT: dict[Variant, tuple[Mode, ...]] = {
    "infonce": ("exact", "detached", "jvp", "finite_difference", "hessian_diag"),
    "jacobian_vjp": ("exact", "detached"),
    "nce": ("exact",),
    "fisher": ("exact",),
    "denoising": ("exact",),
}


@dataclass(frozen=True)
class MclConfig:
    """How the mechanism is read off the generator and contrasted with the condition."""

    # exact: critic gradient, trained through (double backward). detached: the same as a constant; it reaches
    # the heads only. jvp, finite_difference: the generator's derivative along a random direction.
    # hessian_diag: exact, with the diagonal of the critic's Hessian appended.
    mode: Mode = "exact"  # which feature of the mechanism, and how it is trained
    variant: Variant = "infonce"  # objective; nce, fisher and denoising train the critic's score instead
    temperature: float = 0.1  # tau of InfoNCE
    clip_norm: float = 10.0  # largest norm of one row's mechanism feature; 0 = no clipping
    negatives: Negatives = "masked"  # keys of equal conditions: left out, positives, or negatives (all)
    tolerance: float = 0.0  # conditions count as equal when no entry differs by more than this
    through_latent: bool = False  # let gradients flow into z (an encoder) where z has a graph
    step: float = 1e-2  # finite_difference: root mean square displacement of a latent element
    num_probes: int = 0  # hessian_diag: random probes; 0 = exact, one backward per latent element
    noise_std: float = 0.1  # denoising: standard deviation of the noise added to z
    head_lr: float = 0.0  # learning rate of critic and heads; 0 = the host's

    def __post_init__(self) -> None:
        if self.mode not in MODES_OF_VARIANT[self.variant]:
            allowed = ", ".join(MODES_OF_VARIANT[self.variant])
            raise ValueError(f"mcl variant {self.variant} works with mode {allowed}; got {self.mode}")
        for name in ("temperature", "step", "noise_std"):
            if getattr(self, name) <= 0:
                raise ValueError(f"mcl {name} must be positive, got {getattr(self, name)}")
        for name in ("clip_norm", "tolerance", "num_probes", "head_lr"):
            if getattr(self, name) < 0:
                raise ValueError(f"mcl {name} must not be negative, got {getattr(self, name)}")

    def feature_dim(self, latent_dim: int, output_dim: int) -> int:
        """Width of one row of the mechanism feature: the input of the gradient head."""
        if self.mode in DIRECTIONAL:
            return output_dim
        return 2 * latent_dim if self.mode == "hessian_diag" else latent_dim

    @property
    def needs_math_attention(self) -> bool:
        """Whether x_hat given by the host must be computed under `math_attention()`."""
        return self.variant in ("fisher", "denoising") or self.mode in ("exact", "hessian_diag", "jvp")
