"""Contact sheets of evenly spaced frames, and videos with action traces below."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from worldmodel.data.cameras import find_camera
from worldmodel.data.video import write_video
from worldmodel.files import atomic_file
from worldmodel.plain_text import one_line
from worldmodel.types import Episode, evenly_spread

PAPER, INK, FAINT, GRID = (250, 250, 248), (35, 38, 42), (125, 130, 136), (222, 224, 226)
CURSOR = (214, 60, 50)
TRACES = ((33, 102, 172), (200, 120, 20), (46, 134, 87), (150, 70, 150), (90, 90, 90), (178, 50, 70))
TILE = 160  # target width of a frame on the sheet, pixels
GAP = 4  # between tiles, pixels
LINE = 18  # height of a line of text, pixels
VIDEO_WIDTH = 480  # of the action video, pixels
TRACE_HEIGHT = 22  # of one action trace, pixels
MAX_TRACES = 16  # more would not be readable
LABEL_WIDTH, RANGE_WIDTH = 110, 92  # margins of the strip, pixels


def contact_sheet(episodes: Iterable[Episode], *, camera: str | None = None, columns: int = 8) -> Image.Image:
    """One row per episode with `columns` evenly spaced frames, and a line of text above."""
    rows = [_sheet_row(episode, camera, columns) for episode in episodes]
    if not rows:
        raise ValueError("a contact sheet needs at least one episode")
    width, height = max(row.width for row in rows), sum(row.height for row in rows)
    sheet = Image.new("RGB", (width, height + GAP), PAPER)
    top = 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height
    return sheet


def save_png(image: Image.Image, path: str | Path) -> None:
    """Write a PNG atomically."""
    with atomic_file(path) as temporary:
        image.save(temporary, format="PNG", optimize=True)


def write_action_video(path: str | Path, episodes: Sequence[Episode], *, camera: str | None = None) -> int:
    """Write an mp4 of the episodes in turn with action traces below; returns the number of frames."""
    if not episodes:
        raise ValueError("an action video needs at least one episode")
    # One file has one size: the first episode sets it.
    height, width = find_camera(episodes[0], camera).size
    picture = _even(VIDEO_WIDTH), _even(VIDEO_WIDTH * height / width)
    traces = max(len(_moving(episode.robot_actions)) for episode in episodes)
    frames = (
        frame for episode in episodes for frame in _action_frames(episode, camera, picture, max(traces, 1))
    )
    return write_video(path, frames, episodes[0].fps)


def _sheet_row(episode: Episode, camera: str | None, columns: int) -> Image.Image:
    reader = find_camera(episode, camera)
    count = len(reader)
    indices = evenly_spread(count, columns)
    tiles = [_fit(frame, TILE) for frame in reader.read(indices)]
    width, height = tiles[0].size
    row = Image.new("RGB", (GAP + columns * (width + GAP), LINE + height + GAP), PAPER)
    draw = ImageDraw.Draw(row)
    title = f"{episode.uid}   {episode.embodiment}   {episode.task}".rstrip()
    _text(draw, (GAP, 2), title, INK, row.width * 0.62)
    length = f"{count} frames, {count / episode.fps:.1f} s at {episode.fps:.4g} fps"
    draw.text((row.width - GAP, 2), length, FAINT, font=_font(), anchor="ra")
    for column, (index, tile) in enumerate(zip(indices, tiles, strict=True)):
        left = GAP + column * (width + GAP)
        row.paste(tile, (left, LINE))
        _stamp(draw, (left, LINE + height), f"{index / episode.fps:.1f} s")
    return row


def _fit(frame: UInt8[np.ndarray, "H W 3"], width: int) -> Image.Image:
    """Enlarge small frames by whole factors, so that recorded pixels stay visible.

    Shrink large ones smoothly.
    """
    image = Image.fromarray(frame)
    factor = round(width / image.width)
    if factor >= 2:
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    return image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)


def _even(pixels: float) -> int:
    return max(2, 2 * round(pixels / 2))


def _font(size: int = 12):
    return ImageFont.load_default(size)


def _text(draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, ink: tuple, width: float) -> None:
    """Draw text, cut to a width in pixels with dots at the end; characters missing in the font become '?'."""
    text = one_line(text).encode("latin-1", "replace").decode("latin-1")
    if draw.textlength(text, font=_font()) > width:
        while text and draw.textlength(text + "...", font=_font()) > width:
            text = text[:-1]
        text += "..."
    draw.text(at, text, ink, font=_font())


def _stamp(draw: ImageDraw.ImageDraw, bottom_left: tuple[int, int], text: str) -> None:
    left, bottom = bottom_left
    width = draw.textlength(text, font=_font(10))
    draw.rectangle((left, bottom - 13, left + width + 5, bottom - 1), fill=(20, 22, 26))
    draw.text((left + 3, bottom - 13), text, (245, 245, 245), font=_font(10))


def _moving(actions: Float[np.ndarray, "n a"]) -> list[int]:
    """Dimensions that move by more than rounding, in order; at most the MAX_TRACES with the widest range."""
    spread = np.ptp(actions, axis=0) if len(actions) else np.zeros(actions.shape[1])
    moving = np.flatnonzero(spread > max(1e-6, 1e-3 * spread.max()))
    return sorted(moving[np.argsort(-spread[moving], kind="stable")][:MAX_TRACES].tolist())


def _action_frames(
    episode: Episode, camera: str | None, picture: tuple[int, int], num_traces: int
) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    reader = find_camera(episode, camera)
    strip, left, right = _strip(episode, picture[0], num_traces)
    last = max(len(reader) - 1, 1)
    resample = Image.Resampling.NEAREST if reader.size[1] * 2 <= picture[0] else Image.Resampling.BILINEAR
    for start in range(0, len(reader), 32):
        indices = range(start, min(start + 32, len(reader)))
        for index, frame in zip(indices, reader.read(indices), strict=True):
            page = Image.new("RGB", (picture[0], _even(picture[1] + strip.height)), PAPER)
            page.paste(Image.fromarray(frame).resize(picture, resample), (0, 0))
            page.paste(strip, (0, picture[1]))
            draw = ImageDraw.Draw(page)
            x = left + (right - left) * index / last
            draw.line((x, picture[1] + LINE, x, page.height), fill=CURSOR, width=2)
            _stamp(
                draw,
                (0, picture[1]),
                f"{one_line(episode.uid)}   frame {index}   {index / episode.fps:.2f} s",
            )
            yield np.asarray(page)


def _strip(episode: Episode, width: int, num_traces: int) -> tuple[Image.Image, int, int]:
    """The traces of a whole episode, each scaled to its own range, and the x of the first and last frame."""
    actions, shown = episode.robot_actions, _moving(episode.robot_actions)
    strip = Image.new("RGB", (width, LINE + num_traces * TRACE_HEIGHT), PAPER)
    draw = ImageDraw.Draw(strip)
    left, right = LABEL_WIDTH, width - RANGE_WIDTH
    _text(draw, (4, 2), _strip_title(episode, len(shown)), INK, width - 8)
    for row, dim in enumerate(shown):
        top = LINE + row * TRACE_HEIGHT
        values = actions[:, dim]
        low, high = float(values.min()), float(values.max())
        digits = 2 if high - low >= 0.1 else 4
        # Action i is drawn over the interval it acts in, from frame i to frame i + 1.
        x = np.repeat(np.linspace(left, right, len(values) + 1), 2)[1:-1]
        y = np.repeat(top + (TRACE_HEIGHT - 5) * (1 - (values - low) / (high - low)) + 2, 2)
        draw.line((left, top + TRACE_HEIGHT - 1, right, top + TRACE_HEIGHT - 1), fill=GRID)
        draw.line(np.stack([x, y], axis=1).ravel().tolist(), fill=TRACES[row % len(TRACES)], width=2)
        _text(draw, (4, top + 4), episode.action_names[dim], INK, LABEL_WIDTH - 8)
        draw.text(
            (width - 4, top + 4), f"{low:.{digits}f} .. {high:.{digits}f}", FAINT, font=_font(11), anchor="ra"
        )
    return strip, left, right


def _strip_title(episode: Episode, num_shown: int) -> str:
    total = episode.robot_actions.shape[1]
    note = episode.action_space.replace("_", " ") or "actions"
    if num_shown < total:
        note += f" ({num_shown} of {total} shown)"
    text = episode.instructions[0] if episode.instructions else episode.task
    return f"{note}: {text}" if text else note
