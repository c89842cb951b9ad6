"""How well estimated latents recover true ones: matched correlation and explained variance.

Axes: s models, n samples, d true and k estimated latents.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.diagnostics.identifiability.correlation import (
    cross_correlation,
    matched_correlation,
)

Score = Callable[[Tensor, Tensor], Float[np.ndarray, "*s"]]


def latent_recovery(
    true: Float[Tensor, "s n d"], estimated: Float[Tensor, "s n k"], condition: Int[Tensor, "s n"]
) -> dict[str, Float[np.ndarray, " s"]]:
    """All scores by name.

    mcc: Pearson, matched and scored on all samples (the paper's). mcc_spearman: the same on ranks.
    mcc_held_out: matched on one half, scored on the other. mcc_by_condition: matched separately in each
    condition, so biased upwards. r2, r2_by_condition: variance explained by an affine map of the estimated
    latents.
    """
    angle, turned = axis_rotation(true, estimated)
    return {
        "mcc": matched_correlation(true, estimated).mean,
        "mcc_spearman": matched_correlation(true, estimated, kind="spearman").mean,
        "mcc_held_out": matched_correlation(true, estimated, matching_share=0.5).mean,
        "mcc_by_condition": by_condition(_mcc, true, estimated, condition),
        "r2": explained_variance(true, estimated),
        "r2_by_condition": by_condition(explained_variance, true, estimated, condition),
        "axis_angle": angle,
        "mcc_turned": turned,
    }


def axis_rotation(
    true: Float[Tensor, "*s n d"], estimated: Float[Tensor, "*s n k"]
) -> tuple[Float[np.ndarray, "*s"], Float[np.ndarray, "*s"]]:
    """How far the estimated axes are turned from the true ones, and the MCC after turning them back.

    The rotation is the orthogonal matrix that best maps standardized estimated latents to standardized true
    ones. The angle, in degrees, is the mean over the true axes between each and the estimated axis matched to
    it. Both use the true latents: they say what a score lacks, not what a model can do.
    """
    left, _, right = torch.linalg.svd(cross_correlation(true, estimated), full_matrices=False)
    rotation = (left @ right).cpu()
    matched = matched_correlation(true, estimated).assignment
    partner = torch.as_tensor(np.maximum(matched, 0)).unsqueeze(-1)
    cosine = rotation.gather(-1, partner).squeeze(-1).abs().clamp(max=1)
    estimated = estimated / estimated.std(-2, keepdim=True).clamp(min=torch.finfo(estimated.dtype).tiny)
    turned = estimated @ rotation.to(estimated).transpose(-1, -2)
    return torch.rad2deg(cosine.acos().mean(-1)).numpy(), matched_correlation(true, turned).mean


def explained_variance(
    true: Float[Tensor, "*s n d"], estimated: Float[Tensor, "*s n k"]
) -> Float[np.ndarray, "*s"]:
    """R^2 of the best affine map from estimated to true latents, mean over the true ones."""
    target, inputs = (part.double() - part.double().mean(-2, keepdim=True) for part in (true, estimated))
    basis, values, _ = torch.linalg.svd(inputs, full_matrices=False)
    used = values > 1e-9 * values[..., :1].clamp(min=1e-300)
    projected = (basis.transpose(-1, -2) @ target) * used.unsqueeze(-1)
    share = projected.square().sum(-2) / target.square().sum(-2)
    return share.mean(-1).cpu().numpy()


def by_condition(
    score: Score,
    true: Float[Tensor, "s n d"],
    estimated: Float[Tensor, "s n k"],
    condition: Int[Tensor, "s n"],
) -> Float[np.ndarray, " s"]:
    """A score computed within each condition, averaged over the conditions."""
    means = []
    for z, z_hat, labels in zip(true, estimated, condition, strict=True):
        chosen = [labels == value for value in labels.unique()]
        means.append(np.mean([score(z[rows], z_hat[rows]) for rows in chosen]))
    return np.asarray(means)


def _mcc(true: Tensor, estimated: Tensor) -> Float[np.ndarray, "*s"]:
    return matched_correlation(true, estimated).mean
