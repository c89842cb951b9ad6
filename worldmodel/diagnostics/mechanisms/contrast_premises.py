"""How close a trained MCL is to the premises of Theorem 2: alignment, spread and the rank of its contrasts.

The theorem concerns queries q and keys k on the unit sphere of R^d. At its optimum q(z, u) = k(u) (alignment)
and the keys fill the sphere evenly (spread). With d >= 2 d_z + 1, the contrasts q(z, u_n) - q(z, u_0) are
then linearly independent. Axes: n rows, d width of the embedding.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

SHARPNESS = 2.0  # t of the uniformity exp(-t |x - y|^2)


@dataclass(frozen=True)
class ContrastPremises:
    """The measured premises of Theorem 2; `wanted` are the values at its optimum."""

    num_rows: int
    width: int  # d of the embedding
    latent_dim: int  # d_z
    alignment: float  # mean cosine of a query and its own key; wanted: 1
    mismatch: float  # mean cosine of a query and other rows' keys; wanted: 0
    uniformity: float  # log mean exp(-t |k - k'|^2) over pairs of keys; wanted: the next
    even_uniformity: float  # the same of points spread evenly over the sphere
    rank: int  # of the contrasts between queries
    effective_rank: float  # exponential of the entropy of their singular values

    @property
    def needed_width(self) -> int:
        """2 d_z + 1, the least d of the theorem."""
        return 2 * self.latent_dim + 1

    @property
    def is_applicable(self) -> bool:
        """Whether the embedding is as wide as the theorem needs it."""
        return self.width >= self.needed_width

    def verdict(self) -> str:
        """One sentence for a report; where the embedding is too narrow, only that."""
        if not self.is_applicable:
            return (
                f"nothing can be said: the embedding of {self.width} is too narrow for {self.latent_dim} "
                f"latents, set mcl.embedding_dim to 2 d_z + 1 = {self.needed_width} or more"
            )
        return (
            f"queries meet their keys with cosine {self.alignment:.2f} (wanted 1, other keys "
            f"{self.mismatch:.2f}), keys have uniformity {self.uniformity:.2f} (evenly spread: "
            f"{self.even_uniformity:.2f}), contrasts have rank {self.rank} and effective rank "
            f"{self.effective_rank:.1f} of {self.num_rows - 1}; the embedding of {self.width} is wide enough "
            f"for {self.latent_dim} latents (2 d_z + 1 = {self.needed_width}). These are premises about "
            "queries and keys, which a generator that ignores u can meet"
        )


def contrast_premises(
    queries: Float[Tensor, "n d"], keys: Float[Tensor, "n d"], latent_dim: int
) -> ContrastPremises:
    """How well embeddings meet what Theorem 2 assumes of a contrast: alignment, mismatch and rank.

    Queries and keys are paired and are scaled to the unit sphere first.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import contrast_premises
        >>> keys = torch.eye(4)
        >>> found = contrast_premises(keys, keys, latent_dim=1)
        >>> found.alignment, found.mismatch, found.rank
        (1.0, 0.0, 3)

    References:
        "Factored Generative Models through Mechanism Diversity", Theorem 2.
    """
    if len(queries) < 3:
        raise ValueError(f"premises are measured on at least 3 rows, got {len(queries)}")
    q, k = (F.normalize(rows.double(), dim=-1) for rows in (queries, keys))
    similarity = q @ k.T
    off = ~torch.eye(len(q), dtype=torch.bool, device=q.device)
    singular = torch.linalg.svdvals(q[1:] - q[:1])
    share = singular / singular.sum().clamp(min=1e-300)
    return ContrastPremises(
        num_rows=len(q),
        width=q.shape[1],
        latent_dim=latent_dim,
        alignment=similarity.diagonal().mean().item(),
        mismatch=similarity[off].mean().item(),
        uniformity=_uniformity(k),
        even_uniformity=_uniformity(_even_points(len(q), q.shape[1])),
        rank=int((singular > 1e-6 * singular[0].clamp(min=1e-300)).sum()),
        effective_rank=torch.exp(-torch.special.xlogy(share, share).sum()).item(),
    )


def _uniformity(points: Float[Tensor, "n d"]) -> float:
    squared = torch.pdist(points).square()
    return (-SHARPNESS * squared).exp().mean().log().item()


def _even_points(count: int, width: int) -> Float[Tensor, "n d"]:
    source = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(count, width, generator=source, dtype=torch.float64), dim=-1)
