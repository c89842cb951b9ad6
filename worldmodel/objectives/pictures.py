"""The error of pictures where it is seen: absolute as well as squared, of edges as well as of pixels.

Squared error alone is least for the mean of what may come, which is blurred. Absolute error is least for the
median, which is one of the pictures that may come.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.evaluation.metrics.video import laplacian
from worldmodel.models.picture_head import PictureHead

ABS_WEIGHT, SMOOTH_ABS = 0.3, 1e-4  # of the absolute error beside the squared one; where it becomes round
MOVING_THRESHOLD = 0.15  # a pixel moves when it differs by more from the first frame, of a range of 2
# Of shown frames in [0, 1]: weights of moving pixels and of edges; share of clips that know a later one too.
MOVING_WEIGHT, EDGE_WEIGHT, LATER_SHARE = 5.0, 0.3, 0.5


def shown_loss(
    made: Float[Tensor, "b n 3 H W"], real: Float[Tensor, "b n 3 H W"], given: Float[Tensor, "b 3 H W"]
) -> Float[Tensor, ""]:
    """Absolute error of shown frames and of their edges; what moves counts MOVING_WEIGHT times."""
    is_moving = (real - given[:, None]).abs().amax(2, keepdim=True) > MOVING_THRESHOLD / 2
    weight = 1 + (MOVING_WEIGHT - 1) * is_moving
    error = made - real
    return (weight * error.abs()).mean() + EDGE_WEIGHT * (weight * laplacian(error).abs()).mean()


def head_loss(
    head: PictureHead,
    decoded: Float[Tensor, "b n 3 h w"],
    frames: Float[Tensor, "b t 3 H W"],
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """The error of what a head shows for the decoded frames behind the first one of each clip.

    With more than one source, some clips know an earlier shown frame as well: here a true one.
    """
    given, real = frames[:, :1], frames[:, 1:]
    state = head.open(given)
    if head.config.num_sources > 1:
        draws = torch.rand(len(frames), 2, generator=generator).to(frames.device)
        at = (draws[:, 0] * real.shape[1]).long()
        known = real[torch.arange(len(real), device=real.device), at][:, None]
        known = torch.where((draws[:, 1] < LATER_SHARE)[:, None, None, None, None], known, given)
        state = head.open(torch.cat([known, given], 1))
    shown, _ = head(decoded, state)
    return shown_loss(shown, real, given[:, 0])


def picture_loss(
    made: Float[Tensor, "b 3 t H W"],
    real: Float[Tensor, "b 3 t H W"],
    *,
    moving_weight: float,
    edge_weight: float,
) -> Float[Tensor, ""]:
    """Squared and absolute error of pixels in [-1, 1], and absolute error of edges.

    Pixels that differ from the first frame in the truth count `moving_weight` times.
    """
    is_moving = (real - real[:, :, :1]).abs().amax(1, keepdim=True) > MOVING_THRESHOLD
    weight = 1 + (moving_weight - 1) * is_moving
    error = made - real
    absolute = (error.square() + SMOOTH_ABS).sqrt()
    edges = laplacian(error.mean(1)).abs()
    pixels = (weight * (error.square() + ABS_WEIGHT * absolute)).mean()
    return pixels + edge_weight * (weight[:, 0] * edges).mean()
