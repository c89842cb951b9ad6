"""Whether a video shows what was commanded; pure functions on arrays."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Carried:
    """What became of the object by the end of a clip."""

    moved: bool  # in truth
    in_place: bool  # the prediction shows it where it belongs
    distance: float | None  # from there, in pixels of a picture 64 wide; None: the prediction shows no object


def carried_object(
    found: Float[Tensor, "n 2"],
    truth: Float[Tensor, "t 2"],
    is_found: Bool[Tensor, " n"],
    visible: Bool[Tensor, " t"],
    width: int,
) -> Carried | None:
    """Compares the last frames of both; None when the truth does not show the object at both ends."""
    if not (visible[0] and visible[-1]):
        return None
    unit = width / 64
    moved = (truth[-1] - truth[0]).norm() > MOVED_PIXELS * unit
    distance = (found[-1] - truth[-1]).norm().item() / unit if is_found[-1] else None
    return Carried(bool(moved), distance is not None and distance <= FOUND_PIXELS, distance)
