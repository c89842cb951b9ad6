"""JPEG buffers as RoboTwin stores them: with red and blue swapped, unless a comment marks them as standard.

RoboTwin hands RGB arrays to an encoder that expects BGR, so a standard decoder returns swapped colors. Newer
files hold standard JPEGs with the comment `XPL-RGB1`. A file may mix both, so every buffer is checked.
"""

import io
import struct
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image

STANDARD_COLOR_MARK = b"XPL-RGB1"
QUALITY = 95
CHROMA_444, CHROMA_420 = 0, 2  # Pillow's names
SMALL_SIDE = (
    128  # px; RoboTwin has no smaller pictures, and at 64 pixels half the color resolution blurs too much
)
MAX_PIXELS = 4096 * 4096
END_OF_IMAGE = b"\xff\xd9"
START_OF_SCAN, COMMENT = 0xDA, 0xFE
# SOF0..SOF15 without the tables DHT (C4), JPG (C8) and DAC (CC) that share the range
START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})


@dataclass(frozen=True)
class JpegHeader:
    """Information from the segments before the pixels."""

    height: int
    width: int
    num_components: int
    has_standard_colors: bool  # False: red and blue are swapped


def read_header(buffer: bytes) -> JpegHeader:
    """Parse the segments up to the start of scan; decodes nothing."""
    if buffer[:2] != b"\xff\xd8":
        raise ValueError(f"not a JPEG: starts with {buffer[:2].hex() or 'nothing'} instead of ffd8")
    height, width, num_components, has_mark, at = 0, 0, 0, False, 2
    while at + 4 <= len(buffer):
        if buffer[at] != 0xFF:
            raise ValueError(f"broken JPEG header at byte {at}")
        marker = buffer[at + 1]
        if marker == 0xFF or marker in WITHOUT_LENGTH:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == START_OF_SCAN:
            break
        end = at + 2 + int.from_bytes(buffer[at + 2 : at + 4])
        if marker == COMMENT:
            has_mark = has_mark or buffer[at + 4 : end] == STANDARD_COLOR_MARK
        elif marker in START_OF_FRAME and len(buffer) >= at + 10:
            height, width, num_components = struct.unpack_from(">HHB", buffer, at + 5)
        at = end
    if not 0 < height * width <= MAX_PIXELS:
        raise ValueError(f"the JPEG header gives no usable size: {height}x{width}")
    return JpegHeader(height, width, num_components, has_mark)


def encode_swapped(frame: UInt8[ndarray, "H W 3"]) -> bytes:
    """Encode an RGB frame as RoboTwin 2.0 stores it: swapped colors, quality 95, 4:2:0, no comment.

    Pictures smaller than any of RoboTwin's keep their full color resolution.
    """
    output = io.BytesIO()
    subsampling = CHROMA_444 if min(frame.shape[:2]) < SMALL_SIDE else CHROMA_420
    Image.fromarray(np.ascontiguousarray(frame[..., ::-1])).save(
        output, "JPEG", quality=QUALITY, subsampling=subsampling
    )
    return output.getvalue()


def decode_rgb(buffer: bytes, size: tuple[int, int]) -> UInt8[ndarray, "H W 3"]:
    """Decode to RGB, in either color order; the frame must have this (height, width)."""
    header = read_header(buffer)
    if (header.height, header.width) != size:
        raise ValueError(f"the frame is {header.height}x{header.width}, expected {size[0]}x{size[1]}")
    if not buffer.endswith(END_OF_IMAGE):
        raise ValueError("the JPEG is cut off: no end-of-image marker")
    if header.num_components != 3:
        raise ValueError(f"the JPEG has {header.num_components} color components, expected 3")
    # Pillow's decoder without its file parser is 2x faster at 64x64, and colors reversed by Pillow, not by
    # numpy, are 2x faster at 320x240.
    image = Image.frombytes("RGB", (header.width, header.height), buffer, "jpeg", "RGB", "")
    pixels = image.tobytes("raw", "RGB" if header.has_standard_colors else "BGR")
    return np.frombuffer(pixels, np.uint8).reshape(*size, 3)
