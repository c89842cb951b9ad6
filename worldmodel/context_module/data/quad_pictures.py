"""Four colored quadrants and a dark shape in their middle, from eight values in [0, 1].

Edges are smooth over one pixel, so that pictures change continuously with every value but the shape.
"""

import math

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

FACTOR_NAMES = ("quad1", "quad2", "quad3", "quad4", "size", "orientation", "shape", "shade")
NUM_CONCEPTS = 6  # the first ones; shape and shade vary but are never intervened on
SHAPES = ("ellipse", "bar", "triangle", "half_disc")
RAMP = (  # RGB of values 0, 0.2, ..., 1
    (0.85, 0.15, 0.15),
    (0.92, 0.55, 0.10),
    (0.88, 0.85, 0.20),
    (0.15, 0.65, 0.25),
    (0.15, 0.45, 0.85),
    (0.55, 0.20, 0.70),
)
LARGEST = (
    0.42  # half the length of the largest shape, in sides of the picture; the smallest has a fifth of it
)
SWING = math.radians(150)  # between orientations 0 and 1
DARK, BRIGHT = 0.0, 0.3  # gray levels of shades 0 and 1


def ramp_colors(values: Float[Tensor, "..."]) -> Float[Tensor, "... 3"]:
    """Colors between the six of the ramp."""
    ramp = torch.tensor(RAMP)
    place = values.clamp(0, 1) * (len(RAMP) - 1)
    below = place.long().clamp(max=len(RAMP) - 2)
    return torch.lerp(ramp[below], ramp[below + 1], (place - below)[..., None])


def render_quads(factors: Float[Tensor, "n 8"], size: int) -> UInt8[Tensor, "n 3 H W"]:
    """Pictures of `size` x `size` pixels."""
    half = size // 2
    colors = ramp_colors(factors[:, :4]).movedim(-1, 1).unflatten(2, (2, 2))
    background = colors.repeat_interleave(half, 2).repeat_interleave(half, 3)
    gray = (DARK + (BRIGHT - DARK) * factors[:, 7])[:, None, None, None]
    cover = _cover(factors[:, 4], factors[:, 5], factors[:, 6], size)[:, None]
    return (torch.lerp(background, gray.expand_as(background), cover) * 255).round().byte()


def _cover(
    length: Float[Tensor, " n"], orientation: Float[Tensor, " n"], shape: Float[Tensor, " n"], size: int
) -> Float[Tensor, "n H W"]:
    """Share of each pixel that the shape covers."""
    radius = size * LARGEST * (0.2 + 0.8 * length)[:, None, None]  # pixels
    angle = ((orientation - 0.5) * SWING)[:, None, None]
    axis = torch.arange(size) + 0.5 - size / 2
    x, y = axis[None, None, :], axis[None, :, None]
    along = (x * angle.cos() + y * angle.sin()) / radius
    across = (y * angle.cos() - x * angle.sin()) / radius
    kind = (shape * len(SHAPES)).long().clamp(0, len(SHAPES) - 1)
    outside = torch.empty(len(kind), size, size)
    for number, name in enumerate(SHAPES):
        outside[kind == number] = _distance(name, along[kind == number], across[kind == number])
    return (0.5 - outside * radius).clamp(0, 1)


def _distance(name: str, along: Tensor, across: Tensor) -> Tensor:
    """Distance from the edge in units of the radius, negative inside."""
    if name == "ellipse":
        return 0.5 * ((along.square() + (across / 0.5).square()).sqrt() - 1)
    if name == "bar":
        return torch.maximum(along.abs() - 1, across.abs() - 0.3)
    if name == "half_disc":
        return torch.maximum((along.square() + across.square()).sqrt() - 1, -across)
    slope = 0.4  # of the triangle, whose tip points along
    sides = (across.abs() - slope * (1 - along)) / math.hypot(1, slope)
    return torch.maximum(sides, -1 - along)
