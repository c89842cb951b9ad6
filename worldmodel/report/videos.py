"""Videos to look at: truth, prediction and their difference; or several videos with their names."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from worldmodel.types import to_uint8

PANEL_WIDTH = 192  # pixels; smaller frames are enlarged by whole factors, so that pixels stay pixels
GAP = 4  # white pixels between panels
LABEL = 22  # height of the names above them


def side_by_side(
    real: Float[Tensor, "t 3 H W"], made: Float[Tensor, "t 3 H W"]
) -> UInt8[np.ndarray, "t height width 3"]:
    """Truth, prediction, and their signed difference around mid gray."""
    difference = (0.5 + 0.5 * (made - real)).clamp(0, 1)
    panels = [_enlarged(panel.clamp(0, 1)) for panel in (real, made, difference)]
    gap = panels[0].new_ones(*panels[0].shape[:3], GAP)
    row = torch.cat([panels[0], gap, panels[1], gap, panels[2]], -1)
    row = row[..., : row.shape[-2] // 2 * 2, : row.shape[-1] // 2 * 2]  # H.264 needs even sides
    return to_uint8(row).permute(0, 2, 3, 1).contiguous().numpy()


def named_row(videos: Mapping[str, Float[Tensor, "t 3 H W"]]) -> UInt8[np.ndarray, "t height width 3"]:
    """Videos of one size next to each other, each with its name above."""
    panels = [_enlarged(video.clamp(0, 1)) for video in videos.values()]
    gap = panels[0].new_ones(*panels[0].shape[:3], GAP)
    row = torch.cat([part for panel in panels for part in (panel, gap)][:-1], -1)
    label = Image.new("RGB", (row.shape[-1], LABEL), "white")
    draw, font, width = ImageDraw.Draw(label), ImageFont.load_default(13), panels[0].shape[-1] + GAP
    for place, name in enumerate(videos):
        draw.text((place * width + 2, 3), name, "#1a2230", font=font)
    shown = to_uint8(row).permute(0, 2, 3, 1).numpy()
    names = np.repeat(np.asarray(label)[None], len(shown), 0)
    page = np.concatenate([names, shown], 1)
    return np.ascontiguousarray(page[:, : page.shape[1] // 2 * 2, : page.shape[2] // 2 * 2])


def _enlarged(frames: Float[Tensor, "t 3 H W"]) -> Float[Tensor, "t 3 h w"]:
    factor = max(1, PANEL_WIDTH // frames.shape[-1])
    return frames.repeat_interleave(factor, -2).repeat_interleave(factor, -1)
