"""Contact sheet and action video: the right frames in the right places, the cursor where it belongs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robotwin_adapters.tools.contact_sheet import (
    CURSOR,
    GAP,
    LABEL_WIDTH,
    LINE,
    RANGE_WIDTH,
    VIDEO_WIDTH,
    contact_sheet,
    save_png,
    write_action_video,
)
from tests.robotwin_adapters.lerobot.test_write import ArrayFrames, smooth_episode
from worldmodel.data.video import open_video
from worldmodel.types import Episode


def gray_episode(length: int, size: int = 64) -> Episode:
    """Frame t is plain gray 3 t."""
    frames = np.broadcast_to(3 * np.arange(length)[:, None, None, None], (length, size, size, 3)).astype(
        np.uint8
    )
    return replace(smooth_episode(0, length), frames={"head_camera": ArrayFrames(frames)})


def test_rows_are_episodes_and_columns_are_even_in_time() -> None:
    sheet = np.asarray(contact_sheet([gray_episode(71), gray_episode(36)], columns=8))
    tile = 2 * 64  # 64 pixels grow by a whole factor
    assert sheet.shape == (2 * (LINE + tile + GAP) + GAP, GAP + 8 * (tile + GAP), 3)
    for row, step in enumerate((10, 5)):
        y = row * (LINE + tile + GAP) + LINE + tile // 2
        shown = [int(sheet[y, GAP + column * (tile + GAP) + tile // 2, 0]) for column in range(8)]
        assert shown == [3 * step * column for column in range(8)]


def test_large_frames_shrink_and_short_episodes_do_not_repeat() -> None:
    sheet = contact_sheet([gray_episode(3, 320)], columns=8)
    assert sheet.size == (GAP + 8 * (160 + GAP), LINE + 160 + 2 * GAP)
    assert np.asarray(sheet)[100, GAP + 3 * (160 + GAP) + 80].min() > 240, "no fourth frame: paper"


def test_png_is_whole_and_alone(tmp_path: Path) -> None:
    save_png(contact_sheet([gray_episode(9)]), tmp_path / "sheets/a.png")
    assert [path.name for path in (tmp_path / "sheets").iterdir()] == ["a.png"]
    with Image.open(tmp_path / "sheets/a.png") as image:
        image.load()
        assert image.format == "PNG"


def test_action_video_has_a_cursor_that_moves_with_time(tmp_path: Path) -> None:
    episode = gray_episode(21)
    assert write_action_video(tmp_path / "a.mp4", [episode, episode]) == 42
    reader = open_video(tmp_path / "a.mp4")
    assert reader.size[1] == VIDEO_WIDTH
    pictures = reader.read([0, 10, 20, 41]).astype(int)
    strip = pictures[:, VIDEO_WIDTH + LINE + 4 :]  # below the square picture and the title
    redness = (np.abs(strip - np.array(CURSOR)).sum(axis=-1) < 120).mean(axis=1)
    left, right = LABEL_WIDTH, VIDEO_WIDTH - RANGE_WIDTH
    assert redness.argmax(axis=1) == pytest.approx([left, (left + right) / 2, right, right], abs=3)
    assert pictures[1, 100, 100] == pytest.approx([30, 30, 30], abs=4)


def test_constant_actions_and_unknown_cameras(tmp_path: Path) -> None:
    still = replace(gray_episode(5), robot_actions=np.zeros((4, 3)))
    assert write_action_video(tmp_path / "still.mp4", [still]) == 5
    with pytest.raises(ValueError, match=r"episode0\.hdf5: camera 'wrist' expected, found head_camera"):
        contact_sheet([still], camera="wrist")
    with pytest.raises(ValueError, match="at least one episode"):
        contact_sheet([])
