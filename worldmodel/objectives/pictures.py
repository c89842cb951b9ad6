"""The error of pictures where it is seen: absolute as well as squared, of edges as well as of pixels.

Squared error alone is least for the mean of what may come, which is blurred. Absolute error is least for the
median, which is one of the pictures that may come.
"""

from jaxtyping import Float
from torch import Tensor

from worldmodel.evaluation.metrics.video import laplacian

ABS_WEIGHT, SMOOTH_ABS = 0.3, 1e-4  # of the absolute error beside the squared one; where it becomes round
MOVING_THRESHOLD = 0.15  # a pixel moves when it differs by more from the first frame, of a range of 2


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
