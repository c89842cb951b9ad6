"""How alike two videos are, frame by frame; pure functions on RGB tensors in [0, 1].

Every function takes generated frames only (the given ones are cut off before) and answers one number per
frame; means go over the frames of an episode first, then over episodes (`estimates.py`).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

SSIM_SIGMA, SSIM_RADIUS = 1.5, 5  # gaussian window of 11x11 pixels
SSIM_C1, SSIM_C2 = 0.01**2, 0.03**2  # of a data range of 1
MOVING_THRESHOLD = 0.075  # a pixel moves when a channel differs by more from the last given frame
LEAST_ERROR = 1e-10  # equal frames count 100 dB

METRICS = ("psnr", "ssim", "mse", "moving_psnr", "moving_mse")
HIGHER_IS_BETTER = {"psnr": True, "ssim": True, "mse": False, "moving_psnr": True, "moving_mse": False}


def mse(made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
    """Mean squared error over pixels and channels."""
    return (made.double() - real.double()).square().flatten(1).mean(1)


def psnr(made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
    """Peak signal-to-noise ratio in dB, data range 1."""
    return decibels(mse(made, real))


def ssim(made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]) -> Float[Tensor, " t"]:
    """Structural similarity per channel, averaged over channels and over windows inside the picture.

    A gaussian window with population covariance; the border where windows would need padding is left out, as
    scikit-image leaves it out. In double precision: variances are small differences of large numbers.
    """
    if min(made.shape[-2:]) <= 2 * SSIM_RADIUS:
        raise ValueError(f"SSIM needs frames of more than 10 pixels a side, got {tuple(made.shape[-2:])}")
    x, y = made.double().flatten(0, 1)[:, None], real.double().flatten(0, 1)[:, None]
    moments = _blur(torch.cat([x, y, x * x, y * y, x * y]))
    mean_x, mean_y, xx, yy, xy = moments.chunk(5)
    variance_x, variance_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    similarity = (2 * mean_x * mean_y + SSIM_C1) * (2 * covariance + SSIM_C2)
    similarity /= (mean_x**2 + mean_y**2 + SSIM_C1) * (variance_x + variance_y + SSIM_C2)
    return similarity.flatten(1).mean(1).unflatten(0, (-1, 3)).mean(1)


def moving_pixels(
    real: Float[Tensor, "t 3 H W"], last_given: Float[Tensor, "3 H W"], threshold: float = MOVING_THRESHOLD
) -> Bool[Tensor, "t H W"]:
    """Where the true frame no longer shows what the last given frame showed."""
    return (real - last_given).abs().amax(1) > threshold


def masked_mse(
    made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"], mask: Bool[Tensor, "t H W"]
) -> Float[Tensor, " t"]:
    """Mean squared error over the marked pixels; not a number where none is marked."""
    error = (made.double() - real.double()).square().mean(1)
    return (error * mask).flatten(1).sum(1) / mask.flatten(1).sum(1)


def decibels(error: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """PSNR of a mean squared error, data range 1."""
    return -10 * error.clamp_min(LEAST_ERROR).log10()


def score_video(
    made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"], last_given: Float[Tensor, "3 H W"]
) -> dict[str, list[float | None]]:
    """Every metric of METRICS for every frame; None where no pixel moves, so that it can stand in JSON."""
    moving = masked_mse(made, real, moving_pixels(real, last_given))
    curves = {
        "psnr": psnr(made, real),
        "ssim": ssim(made, real),
        "mse": mse(made, real),
        "moving_psnr": decibels(moving),
        "moving_mse": moving,
    }
    return {
        name: [None if math.isnan(value) else value for value in curve.tolist()]
        for name, curve in curves.items()
    }


def _blur(images: Float[Tensor, "n 1 H W"]) -> Float[Tensor, "n 1 h w"]:
    offsets = torch.arange(-SSIM_RADIUS, SSIM_RADIUS + 1, dtype=images.dtype, device=images.device)
    window = torch.exp(-0.5 * (offsets / SSIM_SIGMA) ** 2)
    window = window / window.sum()
    return F.conv2d(F.conv2d(images, window.view(1, 1, 1, -1)), window.view(1, 1, -1, 1))
