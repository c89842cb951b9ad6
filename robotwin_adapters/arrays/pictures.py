"""Converts pictures in any stored form, raw or encoded, to rows of uint8 RGB."""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image

MIN_SIDE, MAX_SIDE = 8, 1 << 13  # pixels
NOT_RGB = ("depth", "seg", "mask", "normal", "flow", "point")  # in names of arrays that look like pictures
# Other formats can start an interpreter or another program (EPS), or are poorly maintained.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"


def looks_like_pictures(name: str, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether an array of this name and shape holds RGB frames, one per row."""
    if len(shape) != 4 or dtype.kind not in "uf" or any(word in name.lower() for word in NOT_RGB):
        return False
    is_last = shape[3] == 3 or (shape[3] == 4 and dtype == np.uint8)
    sides = shape[1:3] if is_last else shape[2:4]
    return (is_last or shape[1] == 3) and min(sides) >= MIN_SIDE


def looks_like_encoded(first: bytes) -> bool:
    """Whether these bytes begin a JPEG or PNG."""
    return first.startswith((JPEG, PNG))


def frame_size(shape: Sequence[int]) -> tuple[int, int]:
    """(height, width) of raw pictures, channels last or first."""
    height, width = (shape[1], shape[2]) if shape[3] in (3, 4) else (shape[2], shape[3])
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        raise ValueError(f"pictures of {height}x{width} pixels are not usable")
    return int(height), int(width)


def to_rgb(pictures: ndarray) -> UInt8[ndarray, "n H W 3"]:
    """Raw pictures as uint8 RGB: channels last, alpha dropped, floats in 0..1 or 0..255 rounded."""
    if pictures.shape[3] not in (3, 4):
        pictures = np.moveaxis(pictures, 1, 3)
    pictures = pictures[..., :3]
    if pictures.dtype == np.uint8:
        return np.ascontiguousarray(pictures)
    if pictures.dtype.kind != "f" or not np.isfinite(pictures).all():
        raise ValueError(f"pictures should be uint8 or finite floats, got {pictures.dtype}")
    low, high = (float(pictures.min()), float(pictures.max())) if pictures.size else (0.0, 0.0)
    if low < 0 or high > 255:
        raise ValueError(f"pictures should be in 0..1 or 0..255, got {low:g}..{high:g}")
    return np.round(pictures * (255 if high <= 1 else 1)).astype(np.uint8)


def as_rgb(picture: Image.Image) -> UInt8[ndarray, "H W 3"]:
    """Convert to eight bits per color; refuses deeper pictures, which are usually depth maps."""
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"{picture.mode} pixels, expected 8 bits a color: leave depth out by camera_keys")
    return np.asarray(picture.convert("RGB"))


def decode_picture(where: str, data: bytes, size: tuple[int, int] | None = None) -> UInt8[ndarray, "H W 3"]:
    """Decode JPEG, PNG or similar bytes to RGB; refuses truncated data and another (height, width)."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            if max(picture.size) > MAX_SIDE:
                raise ValueError(f"{picture.size} pixels")
            pixels = as_rgb(picture)
    # Pillow raises many kinds of parser errors; UnidentifiedImageError is an OSError.
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, Image.DecompressionBombError) as error:
        raise ValueError(f"{where} cannot be decoded ({error})") from error
    if size is not None and pixels.shape[:2] != size:
        raise ValueError(
            f"{where} is {pixels.shape[0]}x{pixels.shape[1]}, the first one is {size[0]}x{size[1]}"
        )
    return pixels
