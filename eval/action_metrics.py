"""Whether a video shows what was commanded; pure functions on arrays."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOVED_PIXELS = 3.0  # at 64 pixels of picture width: an object that went further has been carried
FOUND_PIXELS = 3.0  # likewise: a prediction this near has put the object where it belongs


def action_error(
    recovered: Float[Tensor, "n a"], commanded: Float[Tensor, "n a"], mask: Bool[Tensor, " a"]
) -> Float[Tensor, " n"]:
    """Root mean squared error over the robot's own dimensions, per transition, in units of half the range."""
    return (recovered - commanded)[:, mask].square().mean(1).sqrt()


def point_error(
    found: Float[Tensor, "t p 2"], truth: Float[Tensor, "t p 2"], visible: Bool[Tensor, "t p"]
) -> Float[Tensor, "t p"]:
    """Distance in pixels per frame and point; not a number where the truth does not show the point."""
    distance = (found - truth).square().sum(-1).sqrt()
    return torch.where(visible, distance, torch.full_like(distance, float("nan")))


def carried_object(
    found: Float[Tensor, "t 2"],
    truth: Float[Tensor, "t 2"],
    is_found: Bool[Tensor, " t"],
    visible: Bool[Tensor, " t"],
    width: int,
) -> tuple[bool, bool] | None:
    """(whether the object moved in truth, whether the prediction has it in place at the end).

    Distances are those of a picture 64 pixels wide. None when the object is not seen at both ends.
    """
    if not (visible[0] and visible[-1]):
        return None
    unit = width / 64
    moved = (truth[-1] - truth[0]).norm() > MOVED_PIXELS * unit
    in_place = is_found[-1] & ((found[-1] - truth[-1]).norm() <= FOUND_PIXELS * unit)
    return bool(moved), bool(in_place)
