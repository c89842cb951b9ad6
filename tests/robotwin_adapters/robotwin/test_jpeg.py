import io

import cv2
import numpy as np
import pytest
from PIL import Image

from robotwin_adapters.robotwin.jpeg import decode_rgb, encode_swapped, read_header

PURE = {"red": (246, 10, 10), "green": (10, 246, 10), "blue": (10, 10, 246)}


def test_encoding_is_what_opencv_writes(robotwin_files) -> None:
    for frame in robotwin_files.draw_frames(3, 240, 320):
        assert encode_swapped(frame) == cv2.imencode(".jpg", frame)[1].tobytes()


def test_small_pictures_keep_their_color_resolution() -> None:
    frame = np.full((64, 64, 3), 128, np.uint8)
    frame[::3, :, 0], frame[:, ::3, 2] = 250, 250
    error = {
        name: np.abs(decode_rgb(buffer, (64, 64)).astype(int) - frame).mean()
        for name, buffer in (
            ("ours", encode_swapped(frame)),
            ("4:2:0", cv2.imencode(".jpg", frame)[1].tobytes()),
        )
    }
    assert error["ours"] < 0.2 * error["4:2:0"]


@pytest.mark.parametrize("color", PURE)
@pytest.mark.parametrize("standard", [False, True])
def test_pure_colors_come_back(color: str, standard: bool, robotwin_files) -> None:
    frame = np.full((32, 32, 3), PURE[color], np.uint8)
    buffer = robotwin_files.encode(frame, standard)
    assert read_header(buffer).has_standard_colors is standard
    assert np.abs(decode_rgb(buffer, (32, 32)).astype(int) - frame).max() <= 2


def test_legacy_decoding_equals_opencv_without_a_swap(robotwin_files) -> None:
    for frame in robotwin_files.draw_frames(3, 240, 320):
        buffer = encode_swapped(frame)
        expected = cv2.imdecode(np.frombuffer(buffer, np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_array_equal(decode_rgb(buffer, (240, 320)), expected)
        assert np.abs(expected.astype(int) - frame).mean() < 2


def test_comment_counts_only_as_a_segment_before_the_pixels() -> None:
    frame = np.zeros((16, 24, 3), np.uint8)
    plain = encode_swapped(frame)
    spoken = io.BytesIO()
    Image.fromarray(frame).save(spoken, "JPEG", comment=b"not XPL-RGB1")
    assert not read_header(spoken.getvalue()).has_standard_colors
    assert not read_header(plain[:-2] + b"\xff\xfe\x00\x0aXPL-RGB1\xff\xd9").has_standard_colors


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}, {"subsampling": 0}])
def test_header_gives_the_size_of_any_jpeg(options: dict) -> None:
    output = io.BytesIO()
    Image.fromarray(np.zeros((30, 50, 3), np.uint8)).save(output, "JPEG", **options)
    header = read_header(output.getvalue())
    assert (header.height, header.width) == (30, 50)


def test_broken_buffers_are_refused(robotwin_files) -> None:
    buffer = encode_swapped(robotwin_files.draw_frames(1)[0])
    gray = io.BytesIO()
    Image.fromarray(np.zeros((48, 64), np.uint8)).save(gray, "JPEG")
    cases = {
        "not a JPEG": b"",
        "cut off": buffer[:-2],
        "expected 48x65": buffer,
        "no usable size": buffer[:30],
        "1 color components": gray.getvalue(),
    }
    for message, data in cases.items():
        with pytest.raises(ValueError, match=message):
            decode_rgb(data, (48, 65) if message.startswith("expected") else (48, 64))
