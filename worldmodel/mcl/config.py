"""What decides how mechanistic contrastive learning (MCL) reads a mechanism and contrasts it."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["exact", "first_order", "detached", "jvp", "finite_difference", "hessian_diag", "latent"]
Negatives = Literal["masked", "multi_positive", "all"]
Variant = Literal["infonce", "nce", "fisher", "denoising", "jacobian_vjp"]
FULL_STEP, HALF_STEP = 0.01, 0.1  # by measurement: docs/mcl.md
DIRECTIONAL: tuple[Mode, ...] = ("jvp", "finite_difference")
MODES_OF_VARIANT: dict[Variant, tuple[Mode, ...]] = {
    "infonce": ("exact", "first_order", "detached", "jvp", "finite_difference", "hessian_diag", "latent"),
    "jacobian_vjp": ("exact", "first_order", "detached"),
    "nce": ("exact",),
    "fisher": ("exact",),
    "denoising": ("exact",),
}
SCORED = (("infonce", "exact"), ("infonce", "first_order"))


@dataclass(frozen=True)
class MclConfig:
    """How the mechanism is read off the generator and contrasted with the condition."""

    # jvp, finite_difference: the generator's derivative along a direction; no critic. exact: gradient of the
    # critic's score, trained through (double backward). With critic_sees all this is the paper's letter,
    # which a generator that ignores u can satisfy (docs/mcl.md). first_order: the same by differences of
    # ordinary gradients. detached: that gradient as a constant; it reaches the heads only. hessian_diag:
    # exact, with the diagonal of the critic's Hessian appended. latent: z itself, to compare with.
    mode: Mode = "finite_difference"  # which feature of the mechanism, and how it is trained
    variant: Variant = "infonce"  # objective; nce, fisher and denoising train the critic's score instead
    temperature: float = 0.1  # tau of InfoNCE
    # raw: as it is, clipped. unit: scaled to unit root mean square, where features are so small that a head
    # sees little but its own biases.
    scale: Literal["raw", "unit"] = "raw"  # of a row's mechanism feature before the head
    clip_norm: float = 10.0  # scale raw: largest norm of a row's feature; 0 = no clipping
    negatives: Negatives = "masked"  # keys of equal conditions: left out, positives, or negatives (all)
    tolerance: float = 0.0  # conditions count as equal when no entry differs by more than this
    through_latent: bool = False  # let gradients flow into z (an encoder) where z has a graph
    # finite_difference, first_order: root mean square displacement of a latent element
    step: float = 0.0  # 0 = 0.01, or 0.1 in half precision, whose rounding drowns smaller ones
    # first_order: central costs two more forward passes of the generator, one_sided one. The sign of a
    # one-sided step is drawn for each sample, which makes it right on average.
    difference: Literal["auto", "one_sided", "central"] = "auto"  # auto: central in half precision only
    # trained: by the contrast. fixed: as it was drawn. score_matched: by a denoising score of x_hat given u,
    # without z (the paper's C.6); the contrast then trains generator and heads alone.
    critic: Literal["trained", "fixed", "score_matched"] = "trained"  # how the critic is trained
    critic_sees: Literal["all", "output_and_u", "output"] = "all"  # all: x_hat, z and u
    critic_hidden: int = 256  # hidden width of the critic
    embedding_dim: int = 128  # d, width of both heads; Theorem 2 needs 2 d_z + 1
    # fixed: one for a run. given: drawn at each step and shown to the head. redrawn: drawn and not shown.
    direction: Literal["fixed", "given", "redrawn"] = "fixed"  # of jvp, finite_difference and jacobian_vjp
    num_probes: int = 0  # hessian_diag: random probes; 0 = exact, one backward per latent element
    noise_std: float = 0.1  # of denoising noise: its std on z, or (score_matched) over that of x_hat
    # Least rows of one contrast. 0: those of a micro-batch on all processes. More: those of a whole step.
    # Features and keys are kept over its micro-batches (one more forward pass), whatever the processes.
    rows: int = 0  # 0: of a micro-batch
    head_lr: float = 0.0  # learning rate of critic and heads; 0 = the host's

    def __post_init__(self) -> None:
        if self.mode not in MODES_OF_VARIANT[self.variant]:
            allowed = ", ".join(MODES_OF_VARIANT[self.variant])
            raise ValueError(f"mcl variant {self.variant} works with mode {allowed}; got {self.mode}")
        if self.critic == "score_matched" and (self.variant, self.mode) not in SCORED:
            raise ValueError(
                "mcl critic score_matched works with variant infonce and mode exact or first_order, "
                f"got {self.variant} and {self.mode}"
            )
        for name in ("temperature", "noise_std", "critic_hidden", "embedding_dim"):
            if getattr(self, name) <= 0:
                raise ValueError(f"mcl {name} must be positive, got {getattr(self, name)}")
        if self.rows and (self.variant not in ("infonce", "jacobian_vjp") or self.direction != "fixed"):
            raise ValueError(
                "mcl rows over micro-batches works with variant infonce or jacobian_vjp and direction fixed, "
                f"got {self.variant} and {self.direction}"
            )
        for name in ("clip_norm", "tolerance", "step", "num_probes", "head_lr", "rows"):
            if getattr(self, name) < 0:
                raise ValueError(f"mcl {name} must not be negative, got {getattr(self, name)}")

    def feature_dim(self, latent_dim: int, output_dim: int) -> int:
        """Width of one row of the mechanism feature: the input of the gradient head."""
        shown = self.direction == "given"
        if self.mode in DIRECTIONAL:
            return output_dim + latent_dim * shown
        if self.variant == "jacobian_vjp":
            return latent_dim + output_dim * shown
        return 2 * latent_dim if self.mode == "hessian_diag" else latent_dim

    def step_size(self, is_half: bool) -> float:
        """The step of differences, in full or half precision."""
        return self.step or (HALF_STEP if is_half else FULL_STEP)

    def is_central(self, is_half: bool) -> bool:
        """Whether first_order compares two points around z, or one with z."""
        return is_half if self.difference == "auto" else self.difference == "central"

    @property
    def hidden_inputs(self) -> tuple[bool, bool]:
        """Whether z and u are kept from the critic."""
        hides_z = self.critic_sees != "all" or self.critic == "score_matched"
        return hides_z, self.critic_sees == "output"

    @property
    def needs_math_attention(self) -> bool:
        """Whether x_hat given by the host must be computed under `math_attention()`."""
        return self.variant in ("fisher", "denoising") or self.mode in ("exact", "hessian_diag", "jvp")


Latent = Literal["noisy", "history", "latent_action"]
Auxiliary = Literal["embodiment", "task"]


@dataclass(frozen=True)
class ActionMclConfig(MclConfig):
    """MCL on the action channel of a world model: which latent, which key, which clips."""

    scale: Literal["raw", "unit"] = "unit"  # as above; features of large latents are small
    # noisy: the noisy latent of each generated latent frame. history: the given clean latents, a row a clip.
    # latent_action: the action that drives the clip, as its own condition (the paper, D.5).
    latent: Latent = "noisy"  # z, by which the mechanism is differentiated
    key: Literal["group", "embedding"] = (
        "group"  # the actions of a latent frame, or the interface's embedding
    )
    share: float = 1.0  # of the clips of a micro-batch that are contrasted; the others only reconstruct
    # Keys count as equal when no entry differs by more than this share of its range in the batch.
    tolerance_share: float | None = None  # none: a tenth of the median difference of two keys
    auxiliaries: tuple[
        Auxiliary, ...
    ] = ()  # what is contrasted beside the action, each with heads of its own
    terms: Literal["own", "joint"] = "own"  # with auxiliaries: one loss each, or one softmax over all
    pairing: Literal["own", "other"] = "own"  # other: rows get the keys of other clips, as a control

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"mcl share is in (0, 1], got {self.share}")
        if self.latent != "noisy" and self.variant not in ("infonce", "jacobian_vjp"):
            raise ValueError(f"mcl latent {self.latent} works with variant infonce; got {self.variant}")
        if self.tolerance_share is not None and not 0 <= self.tolerance_share < 1:
            raise ValueError(f"mcl tolerance_share is in [0, 1), got {self.tolerance_share}")

    def num_clips(self, batch_size: int) -> int:
        """How many clips of a micro-batch are contrasted."""
        return max(1, round(self.share * batch_size))
