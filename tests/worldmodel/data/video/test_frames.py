"""Video reader and writer: random access, sub-ranges, pickling and forking, broken files."""

import multiprocessing
import os
import pickle
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest

from tests.support.video_sets import decoded_in_order, encode, moving_frames
from worldmodel.data import decode_cache
from worldmodel.data.video import VideoFrames, open_video, probe_video, write_video
from worldmodel.data.video import frames as reading

ROBOTS = Path(__file__).parents[4] / "../shared/data/robots"


@pytest.fixture
def clip(tmp_path: Path) -> tuple[Path, np.ndarray]:
    frames = moving_frames(30)
    write_video(tmp_path / "clip.mp4", frames, fps=10)
    return tmp_path / "clip.mp4", frames


def test_written_video_reads_back(clip: tuple[Path, np.ndarray]) -> None:
    path, frames = clip
    reader = open_video(path)
    assert (len(reader), reader.size) == (30, (48, 64))
    assert probe_video(path).fps == pytest.approx(10)
    decoded = reader.read(range(30)).astype(int)
    assert np.abs(decoded - frames).mean() < 4
    # The frame at a position is the one that was written there, not a neighbor.
    distance = np.abs(decoded[:, None] - frames[None].astype(int)).mean(axis=(2, 3, 4))
    assert distance.argmin(axis=1).tolist() == list(range(30))


def test_key_frames_every_eight_and_browser_pixels(clip: tuple[Path, np.ndarray]) -> None:
    with av.open(str(clip[0])) as container:
        stream = container.streams.video[0]
        keys = [index for index, p in enumerate(container.demux(stream)) if p.size and p.is_keyframe]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
    assert keys == [0, 8, 16, 24]


@pytest.mark.parametrize("width", [16, 24, 72, 100])
def test_every_width_is_read(tmp_path: Path, width: int) -> None:
    frames = moving_frames(5, 32, width)
    write_video(tmp_path / "a.mp4", frames, fps=10)
    assert np.abs(open_video(tmp_path / "a.mp4").read([4, 1]).astype(int) - frames[[4, 1]]).mean() < 8


def test_sub_range_is_the_slice(clip: tuple[Path, np.ndarray]) -> None:
    whole = open_video(clip[0]).read(range(30))
    part = open_video(clip[0], offset=11, length=9)
    assert len(part) == 9
    assert np.array_equal(part.read(range(9)), whole[11:20])
    assert np.array_equal(part.read([8, 0]), whole[[19, 11]])
    assert part.read([]).shape == (0, 48, 64, 3)


def read_frame(reader: VideoFrames, index: int) -> np.ndarray:
    return reader.read([index])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_readers_cross_process_borders(clip: tuple[Path, np.ndarray], method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    reader = open_video(clip[0])
    here = reader.read([3, 21])
    assert pickle.loads(pickle.dumps(reader)) == reader
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        there = [pool.submit(read_frame, reader, index).result(timeout=120) for index in (3, 21)]
    assert np.array_equal(np.concatenate(there), here)


def test_reading_out_of_range_is_refused(clip: tuple[Path, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"clip\.mp4.*it has 0\.\.29"):
        open_video(clip[0]).read([0, 30])
    with pytest.raises(ValueError, match=r"frames 25\.\.34 expected, the file has 30"):
        open_video(clip[0], offset=25, length=10)


def test_writer_refuses_what_browsers_cannot_play(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="even height and width, got 47x64"):
        write_video(tmp_path / "odd.mp4", moving_frames(3)[:, :47], fps=10)
    with pytest.raises(ValueError, match="at least one frame"):
        write_video(tmp_path / "none.mp4", [], fps=10)
    with pytest.raises(ValueError, match="frame 1 is"):
        write_video(tmp_path / "mixed.mp4", [moving_frames(1)[0], moving_frames(1, 64, 64)[0]], fps=10)
    assert not list(tmp_path.iterdir()), "a refused video leaves nothing behind"


@pytest.mark.parametrize("content", [b"", b"not a video at all", b"\0\0\0\x18ftypmp42" + bytes(64)])
def test_unreadable_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.mp4").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.mp4"):
        open_video(tmp_path / "x.mp4")
    with pytest.raises(ValueError, match=r"no video file at .*gone\.mp4"):
        open_video(tmp_path / "gone.mp4")


def test_a_file_that_claims_a_terabyte_is_not_read(clip: tuple[Path, np.ndarray]) -> None:
    os.truncate(clip[0], 1 << 40)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"clip\.mp4: 1099511627776 bytes, expected a video of at most"):
        open_video(clip[0])


def test_truncated_and_uneven_files_are_refused(clip: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    content = clip[0].read_bytes()
    (tmp_path / "half.mp4").write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(ValueError, match=r"half\.mp4"):
        open_video(tmp_path / "half.mp4")
    with av.open(str(tmp_path / "gap.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for time, image in zip([0, 1, 2, 7, 8], moving_frames(5), strict=True):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = time
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(ValueError, match=r"gap\.mp4: frames are not evenly spaced"):
        open_video(tmp_path / "gap.mp4")


def test_our_own_videos_carry_a_checksum(clip: tuple[Path, np.ndarray]) -> None:
    content = clip[0].read_bytes()
    for position in range(0, len(content) - 56, 97):
        broken = bytearray(content)
        broken[position] ^= 16
        clip[0].write_bytes(broken)
        with pytest.raises(ValueError, match=r"clip\.mp4"):
            open_video(clip[0])
    clip[0].write_bytes(content[:-60] + bytes(16) + content[-44:])
    with pytest.raises(ValueError, match="checksum differs"):
        open_video(clip[0])
    # Without the last box the file is an ordinary video.
    clip[0].write_bytes(content[:-56])
    assert len(open_video(clip[0])) == 30


def test_flipped_picture_bits_are_found(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    encode(path, moving_frames(30), "libx264", "yuv420p")
    content, generator = path.read_bytes(), random.Random(0)
    start = content.index(b"mdat") + 700  # behind the parameter sets and the encoder's own comment
    found = 0
    for _ in range(20):
        broken = bytearray(content)
        broken[generator.randrange(start, content.index(b"moov"))] ^= 1 << generator.randrange(8)
        path.write_bytes(broken)
        try:
            open_video(path)
        except ValueError:
            found += 1
    assert found >= 15, found


def test_real_robot_videos_are_the_same_as_in_sequential_decoding() -> None:
    files = sorted(ROBOTS.glob("**/*.mp4"), key=lambda path: path.stat().st_size)[::40]
    if not files:
        pytest.skip("no shared robot data here")
    for path in files:
        reader, truth = open_video(path, verify=False), decoded_in_order(path)
        order = [len(reader) - 1, 0, len(reader) // 2]
        assert np.array_equal(reader.read(order), truth[order]), path


def test_a_sound_file_is_decoded_once_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(tmp_path / "a.mp4", moving_frames(6), "libx264", "yuv420p")
    monkeypatch.setenv("WORLDMODEL_CACHE", str(tmp_path / "cache"))
    decoded: list[str] = []
    original = reading._verify
    monkeypatch.setattr(reading, "_verify", lambda *part: decoded.append(part[0]) or original(*part))
    for _ in range(2):
        open_video(tmp_path / "a.mp4").check()
    (tmp_path / "moved").mkdir()
    (tmp_path / "a.mp4").rename(tmp_path / "moved/b.mp4")
    decode_cache._memory.cache_clear()  # as in a new process
    moved = open_video(tmp_path / "moved/b.mp4")
    assert len(decoded) == 1
    moved.check(again=True)
    open_video(tmp_path / "moved/b.mp4", offset=1, length=2)
    assert len(decoded) == 3
    content = (tmp_path / "moved/b.mp4").read_bytes()
    (tmp_path / "moved/b.mp4").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"b\.mp4"):
        open_video(tmp_path / "moved/b.mp4")


def test_a_cache_that_cannot_be_written_or_read_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(tmp_path / "a.mp4", moving_frames(6), "libx264", "yuv420p")
    (tmp_path / "cache").write_text("a file, no folder")
    monkeypatch.setenv("WORLDMODEL_CACHE", str(tmp_path / "cache"))
    assert len(open_video(tmp_path / "a.mp4")) == 6
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/verified.jsonl").write_text('["half a li\n[1]\n{}\n')
    monkeypatch.setenv("WORLDMODEL_CACHE", str(tmp_path / "torn"))
    assert len(open_video(tmp_path / "a.mp4")) == 6
    assert len((tmp_path / "torn/verified.jsonl").read_text().splitlines()) == 4


def test_many_videos_are_checked_at_once(tmp_path: Path) -> None:
    for number in range(4):
        encode(tmp_path / f"{number}.mp4", moving_frames(12), "libx264", "yuv420p")
    content = bytearray((tmp_path / "2.mp4").read_bytes())
    middle = content.index(b"mdat") + 900
    content[middle : middle + 60] = bytes(60)
    (tmp_path / "2.mp4").write_bytes(content)
    readers = [open_video(tmp_path / f"{number}.mp4", verify=False) for number in range(4)]
    assert decode_cache.check_frames(readers, "never") == {}
    assert list(decode_cache.check_frames(readers, "once")) == [2]
