"""Metrics of how well a video follows the commands; pure functions on arrays."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOVED_PIXELS = 3.0  # at an image width of 64 pixels: an object displaced by more has been moved
FOUND_PIXELS = 3.0  # at the same width: a predicted object this close counts as correctly placed


def action_error(
    recovered: Float[Tensor, "n a"], commanded: Float[Tensor, "n a"], mask: Bool[Tensor, " a"]
) -> Float[Tensor, " n"]:
    """Root mean squared error over the robot's own dimensions, per transition, in units of half the range."""
    return (recovered - commanded)[:, mask].square().mean(1).sqrt()


def point_error(
    found: Float[Tensor, "t p 2"], truth: Float[Tensor, "t p 2"], visible: Bool[Tensor, "t p"]
) -> Float[Tensor, "t p"]:
    """Distance in pixels per frame and point; NaN where the point is not visible in the truth."""
    distance = (found - truth).square().sum(-1).sqrt()
    return torch.where(visible, distance, torch.full_like(distance, float("nan")))


@dataclass(frozen=True)
class Carried:
    """Final position of the manipulated object."""

    moved: bool  # in the true video
    in_place: bool  # the prediction shows it at the true position
    distance: float | None  # from the true position, in pixels of an image 64 wide; None: not found


def carried_object(
    found: Float[Tensor, "n 2"],
    truth: Float[Tensor, "t 2"],
    is_found: Bool[Tensor, " n"],
    visible: Bool[Tensor, " t"],
    width: int,
) -> Carried | None:
    """Compare the last frames of both; None unless the object is visible in the truth at both ends."""
    if not (visible[0] and visible[-1]):
        return None
    unit = width / 64
    moved = (truth[-1] - truth[0]).norm() > MOVED_PIXELS * unit
    distance = (found[-1] - truth[-1]).norm().item() / unit if is_found[-1] else None
    return Carried(bool(moved), distance is not None and distance <= FOUND_PIXELS, distance)
