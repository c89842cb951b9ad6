"""Arranges several cameras in one picture, so that one backbone processes them together.

side_by_side           stacked          wrists_below (the first camera above, the others below it)
+------+------+        +------+         +-------------+
|  0   |  1   |        |  0   |         |      0      |  2/3 of the height
+------+------+        +------+         +------+------+
                       |  1   |         |  1   |  2   |  1/3
                       +------+         +------+------+
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import UInt8
from torch import Tensor

Layout = Literal["side_by_side", "stacked", "wrists_below"]
JOINT = "+"  # separates camera names in the name of the picture
GRID = 8  # pixels: borders are multiples of this if the size allows, so that no latent covers two cameras
MIN_SIDE = 12  # pixels of a view; SSIM needs 11


@dataclass(frozen=True)
class Box:
    """The position of one view in the picture, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def cut(self, frames: Tensor) -> Tensor:
        """Crop frames [... H W] to this view."""
        return frames[..., self.top : self.top + self.height, self.left : self.left + self.width]


def view_boxes(layout: Layout, count: int, height: int, width: int) -> tuple[Box, ...]:
    """One box per camera; together they cover the picture.

    Examples:
        >>> from worldmodel.data.layouts import view_boxes
        >>> view_boxes("side_by_side", 2, 64, 128)
        (Box(top=0, left=0, height=64, width=64), Box(top=0, left=64, height=64, width=64))
    """
    if count < 2:
        raise ValueError(f"a layout is for two cameras or more, got {count}")
    if layout == "stacked":
        boxes = [Box(top, 0, size, width) for top, size in _divided(height, [1] * count)]
    elif layout == "side_by_side":
        boxes = [Box(0, left, height, size) for left, size in _divided(width, [1] * count)]
    else:
        (_, above), (top, below) = _divided(height, [2, 1])
        row = [Box(top, left, below, size) for left, size in _divided(width, [1] * (count - 1))]
        boxes = [Box(0, 0, above, width), *row]
    if min(min(box.height, box.width) for box in boxes) < MIN_SIDE:
        raise ValueError(
            f"{count} cameras {layout} in {height}x{width} leave one of them less than {MIN_SIDE} pixels: "
            "raise data.clip.height and width, or name fewer cameras"
        )
    return tuple(boxes)


def compose(
    views: Sequence[UInt8[Tensor, "t 3 _ _"]], boxes: Sequence[Box], height: int, width: int
) -> UInt8[Tensor, "t 3 H W"]:
    """Combine views of the size of their boxes into one picture."""
    picture = torch.empty(len(views[0]), 3, height, width, dtype=torch.uint8)
    for view, box in zip(views, boxes, strict=True):
        box.cut(picture).copy_(view)
    return picture


def _divided(total: int, weights: Sequence[int]) -> list[tuple[int, int]]:
    """(start, size) of parts in these proportions, with borders on the grid unless a part would vanish."""
    step = GRID if total >= GRID * len(weights) else 1
    sums = [sum(weights[: number + 1]) for number in range(len(weights))]
    ends = [round(total * part / sums[-1] / step) * step for part in sums[:-1]]
    return [(start, end - start) for start, end in zip([0, *ends], [*ends, total], strict=True)]
