"""Similarity of two videos, frame by frame; pure functions on RGB tensors in [0, 1].

Every function expects generated frames only (without the given ones) and returns one number per frame; means
are over the frames of an episode first, then over episodes (`worldmodel.report.intervals`).
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

SSIM_SIGMA, SSIM_RADIUS = 1.5, 5  # Gaussian window of 11x11 pixels
PLAIN_WINDOW = 7  # pixels per side
SSIM_C1, SSIM_C2 = 0.01**2, 0.03**2  # of a data range of 1
MOVING_THRESHOLD = 0.075  # a pixel moves if a channel differs by more from the last given frame
LEAST_EDGE_PIXELS = 16  # with fewer moving pixels no edge ratio is computed: it would be too noisy
LEAST_ERROR = 1e-10  # equal frames count 100 dB

METRICS = ("psnr", "ssim", "mse", "moving_psnr", "moving_mse", "edges_moving")


def mse(made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
    """Mean squared error over pixels and channels."""
    return (made.double() - real.double()).square().flatten(1).mean(1)


def psnr(made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
    """Peak signal-to-noise ratio in dB, data range 1.

    `PSNR = -10 log10(mean squared error)`

    Examples:
        >>> import torch
        >>> from worldmodel import psnr
        >>> real = torch.zeros(2, 3, 16, 16)
        >>> psnr(real + 0.1, real).round().tolist()
        [20.0, 20.0]
    """
    return decibels(mse(made, real))


def ssim(made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
    """Structural similarity per channel, averaged over channels and over windows inside the picture.

    A Gaussian window with population covariance; windows that would need padding are excluded, as in
    scikit-image. Computed in double precision: variances are small differences of large numbers.

    Examples:
        >>> import torch
        >>> from worldmodel import ssim
        >>> real = torch.rand(2, 3, 16, 16)
        >>> ssim(real, real).tolist()
        [1.0, 1.0]

    References:
        "Image Quality Assessment: From Error Visibility to Structural Similarity", 2004.
    """
    if min(made.shape[-2:]) <= 2 * SSIM_RADIUS:
        raise ValueError(f"SSIM needs frames of more than 10 pixels a side, got {tuple(made.shape[-2:])}")
    return _similarity(made, real, _blur)


def plain_ssim(made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
    """Structural similarity with a uniform window of 7x7 pixels and sample covariance.

    scikit-image's default, and so what WorldArena and other benchmarks report; its values differ from those
    of `ssim`.

    Examples:
        >>> import torch
        >>> from worldmodel.evaluation.metrics.video import plain_ssim
        >>> real = torch.rand(2, 3, 16, 16)
        >>> plain_ssim(real, real).tolist()
        [1.0, 1.0]
    """
    if min(made.shape[-2:]) < PLAIN_WINDOW:
        raise ValueError(f"SSIM needs frames of 7 pixels a side or more, got {tuple(made.shape[-2:])}")
    return _similarity(made, real, _mean, PLAIN_WINDOW**2 / (PLAIN_WINDOW**2 - 1))


def moving_pixels(
    real: Float[Tensor, "t 3 H W"], last_given: Float[Tensor, "3 H W"], threshold: float = MOVING_THRESHOLD
) -> Bool[Tensor, "t H W"]:
    """Pixels whose true value has changed since the last given frame."""
    return (real - last_given).abs().amax(1) > threshold


def masked_mse(
    made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"], mask: Bool[Tensor, "t H W"]
) -> Float[Tensor, " t"]:
    """Mean squared error over the marked pixels; NaN if there are none."""
    error = (made.double() - real.double()).square().mean(1)
    return (error * mask).flatten(1).sum(1) / mask.flatten(1).sum(1)


def laplacian(images: Float[Tensor, "*n H W"]) -> Float[Tensor, "*n H W"]:
    """Sum of the four neighbors minus four times the pixel, with edge padding."""
    flat = images.flatten(0, -3)[:, None]
    padded = F.pad(flat, (1, 1, 1, 1), mode="replicate")
    sides = padded[..., 1:-1, 2:] + padded[..., 1:-1, :-2] + padded[..., 2:, 1:-1] + padded[..., :-2, 1:-1]
    return (sides - 4 * flat)[:, 0].reshape(images.shape)


def edges_moving(
    made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"], mask: Bool[Tensor, "t H W"]
) -> Float[Tensor, " t"]:
    """Sharpness of the marked pixels: energy of the gray image's Laplacian relative to the truth.

    1 is as sharp as the truth, less is blurred, more is noise or misplaced edges. NaN where fewer than 16
    pixels are marked.

    Examples:
        >>> import torch
        >>> from worldmodel.evaluation.metrics.video import edges_moving
        >>> real = torch.rand(2, 3, 16, 16)
        >>> edges_moving(real / 2, real, torch.ones(2, 16, 16, dtype=torch.bool)).tolist()
        [0.25, 0.25]
    """
    energies = [
        (laplacian(video.double().mean(1)).square() * mask).flatten(1).sum(1) for video in (made, real)
    ]
    ratio = energies[0] / energies[1]
    return ratio.masked_fill(mask.flatten(1).sum(1) < LEAST_EDGE_PIXELS, torch.nan)


def decibels(error: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """PSNR of a mean squared error, data range 1."""
    return -10 * error.clamp_min(LEAST_ERROR).log10()


def score_video(
    made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"], last_given: Float[Tensor, "3 H W"]
) -> dict[str, list[float | None]]:
    """Every metric of METRICS for every frame; None where no pixel moves, because JSON has no NaN."""
    mask = moving_pixels(real, last_given)
    whole, moving = mse(made, real), masked_mse(made, real, mask)
    curves = {
        "psnr": decibels(whole),
        "ssim": ssim(made, real),
        "mse": whole,
        "moving_psnr": decibels(moving),
        "moving_mse": moving,
        "edges_moving": edges_moving(made, real, mask),
    }
    return {
        name: [value if math.isfinite(value) else None for value in curve.tolist()]
        for name, curve in curves.items()
    }


def _similarity(
    made: Float[Tensor, "t 3 H W"],
    real: Float[Tensor, "t 3 H W"],
    blur: Callable[[Tensor], Tensor],
    covariance_scale: float = 1.0,
) -> Float[Tensor, " t"]:
    """Mean over windows and channels; `blur` computes the mean of every window."""
    x, y = made.double().flatten(0, 1), real.double().flatten(0, 1)
    mean_x, mean_y = blur(x), blur(y)
    product, squares = mean_x * mean_y, mean_x**2 + mean_y**2
    covariance = covariance_scale * (blur(x * y) - product)
    variances = covariance_scale * (blur(x * x + y * y) - squares)
    similarity = (2 * product + SSIM_C1) * (2 * covariance + SSIM_C2)
    similarity /= (squares + SSIM_C1) * (variances + SSIM_C2)
    return similarity.flatten(1).mean(1).unflatten(0, (-1, 3)).mean(1)


def _mean(images: Float[Tensor, "n H W"]) -> Float[Tensor, "n h w"]:
    return F.avg_pool2d(images[:, None], PLAIN_WINDOW, stride=1)[:, 0]


def _blur(images: Float[Tensor, "n H W"]) -> Float[Tensor, "n h w"]:
    """Blur by two matrix products: in double precision many times faster than a convolution on a CPU."""
    down, across = (_windows(size).to(images) for size in images.shape[1:])
    return down @ images @ across.T


@lru_cache(maxsize=8)
def _windows(size: int) -> Float[Tensor, "h H"]:
    """The Gaussian window at every position where it fits into the picture, one per row."""
    places = torch.arange(SSIM_RADIUS, size - SSIM_RADIUS, dtype=torch.float64)
    offsets = torch.arange(size) - places[:, None]
    weights = torch.exp(-0.5 * (offsets / SSIM_SIGMA) ** 2) * (offsets.abs() <= SSIM_RADIUS)
    return weights / weights.sum(1, keepdim=True)
