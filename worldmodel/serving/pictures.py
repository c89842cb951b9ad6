"""RGB pictures as base64 PNG, both ways. Sizes are checked before decoding."""

import base64
import binascii
import io
import struct

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from worldmodel.serving.errors import invalid
from worldmodel.serving.messages import Picture

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB, BITS = 2, 8  # PNG's color type without palette or alpha, and its depth


def encode_picture(rgb: UInt8[np.ndarray, "H W 3"]) -> dict[str, object]:
    """A picture in the interface's format, without metadata."""
    height, width, channels = rgb.shape
    return {
        "encoding": "png_base64",
        "color_space": "RGB",
        "height": height,
        "width": width,
        "channels": channels,
        "data": base64.b64encode(png_bytes(rgb)).decode("ascii"),
    }


def png_bytes(rgb: UInt8[np.ndarray, "H W 3"]) -> bytes:
    """A lightly compressed PNG file: for small pictures, sending is much faster than compressing."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def decode_picture(picture: Picture, size: tuple[int, int], place: str) -> UInt8[np.ndarray, "H W 3"]:
    """Decode the pixels; a picture whose size, kind or content differs from its declaration is refused."""
    if (picture.height, picture.width) != size:
        raise invalid(
            f"{place}: the profile has pictures of {size[0]}x{size[1]}, got {picture.height}x{picture.width}"
        )
    try:
        data = base64.b64decode(picture.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{place}.data: not standard base64") from error
    _check_header(data, size, place)
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if getattr(image, "n_frames", 1) != 1:
                raise invalid(f"{place}.data: an animated PNG, expected one picture")
            return np.array(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as error:
        raise invalid(f"{place}.data: a damaged PNG file") from error


def _check_header(data: bytes, size: tuple[int, int], place: str) -> None:
    if len(data) < 33 or data[:8] != SIGNATURE or data[12:16] != b"IHDR":
        raise invalid(f"{place}.data: not a PNG file")
    width, height, bits, kind = struct.unpack(">IIBB", data[16:26])
    if (height, width) != size:
        raise invalid(f"{place}.data: the file is {height}x{width}, the message says {size[0]}x{size[1]}")
    if (bits, kind) != (BITS, RGB):
        raise invalid(
            f"{place}.data: expected 8-bit RGB without palette or alpha, got {bits} bits, color type {kind}"
        )
