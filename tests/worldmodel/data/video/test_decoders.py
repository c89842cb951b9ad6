"""Chosen frames from files that stay open: the same to the last bit as in sequential decoding."""

import random
from pathlib import Path

import av
import numpy as np
import pytest

from tests.support.video_sets import decoded_in_order, encode, moving_frames
from worldmodel.data.video import decoders, open_video, probe_video, write_video

CODECS = [
    ("libx264", "yuv420p"),
    ("libx265", "yuv420p"),
    ("mpeg4", "yuv420p"),
    ("libsvtav1", "yuv420p"),
    ("libx264", "yuv420p10le"),
]


@pytest.mark.parametrize(("codec", "pix_fmt"), CODECS)
def test_random_access_gives_the_frames_of_sequential_decoding(
    tmp_path: Path, codec: str, pix_fmt: str
) -> None:
    encode(tmp_path / "a.mp4", moving_frames(40, 64, 96), codec, pix_fmt)
    truth, reader = decoded_in_order(tmp_path / "a.mp4"), open_video(tmp_path / "a.mp4")
    for order in ([7, 0, 39, 39, 12, 13, 5], range(11, 28), [39], [0]):
        assert np.array_equal(reader.read(order), truth[list(order)])


def test_few_files_stay_open_and_a_changed_one_is_opened_again(tmp_path: Path) -> None:
    readers = []
    for number in range(decoders.MAX_DECODERS + 3):
        write_video(tmp_path / f"{number}.mp4", moving_frames(3 + number % 2), fps=10)
        readers.append(open_video(tmp_path / f"{number}.mp4"))
        readers[-1].read([0])
    opened = [decoder.path for decoder in decoders.open_decoders().in_use]
    assert len(opened) == decoders.MAX_DECODERS
    assert str(tmp_path / "0.mp4") not in opened
    write_video(tmp_path / "5.mp4", moving_frames(4)[::-1], fps=10)
    again = open_video(tmp_path / "5.mp4").read([0])[0].astype(int)
    assert np.abs(again - moving_frames(4)[3]).mean() < 5
    (tmp_path / "6.mp4").unlink()
    with pytest.raises(ValueError, match=r"no video file at .*6\.mp4"):
        readers[6].read([0])


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_frames_that_nobody_needs_are_passed_over_and_the_others_stay_the_same(
    tmp_path: Path, codec: str
) -> None:
    """One key frame and many B-frames: to read a late frame, those without dependents need not be decoded."""
    extra = {"x265-params": "log-level=error"} if codec == "libx265" else {}
    encode(tmp_path / "b.mp4", moving_frames(60), codec, "yuv420p", bf="3", g="250", **extra)
    with av.open(str(tmp_path / "b.mp4")) as container:
        plain = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    reader, choose = open_video(tmp_path / "b.mp4"), random.Random(0)
    for _ in range(40):
        indices = sorted(choose.sample(range(60), choose.choice((1, 3, 17, 60))))
        assert np.array_equal(reader.read(indices), plain[indices])
    decoder, decoded = counting_decoder(tmp_path / "b.mp4")
    assert [index for index, _ in decoder.read(probe_video(reader.path), np.array([59]))] == [59]
    assert 2 < sum(decoded) < 50


@pytest.mark.parametrize(("codec", "pix_fmt"), CODECS)
def test_reading_goes_on_from_where_a_decoder_stands(tmp_path: Path, codec: str, pix_fmt: str) -> None:
    """Random clips of a file with few key frames, as training reads them; all frames stay the same."""
    path, choose = tmp_path / "a.mp4", random.Random(1)
    encode(path, moving_frames(150, 64, 96), codec, pix_fmt, g="70", sc_threshold="0")
    truth, fresh = decoded_in_order(path), decoders.Decoders()
    keys = probe_video(path).keys.tolist()
    assert keys[0] == 0
    for _ in range(60):
        start, step = choose.randrange(130), choose.choice((1, 1, 2))
        clip = list(range(start, min(150, start + 17 * step), step))
        assert np.array_equal(fresh.read(str(path), np.array(clip)), truth[clip]), clip
    assert 2 <= len(fresh.in_use) <= decoders.MAX_DECODERS, keys


def test_large_pictures_have_fewer_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mp4"
    encode(path, moving_frames(120), "libx264", "yuv420p", g="120", sc_threshold="0")
    monkeypatch.setattr(decoders, "MAX_OPEN_PIXELS", 3 * 48 * 64 + 1)
    fresh, truth = decoders.Decoders(), decoded_in_order(path)
    for index in (115, 100, 80, 60, 40, 119):
        assert np.array_equal(fresh.read(str(path), np.array([index])), truth[[index]])
    assert len(fresh.in_use) == 3


def test_a_clip_ahead_costs_only_the_frames_in_between(tmp_path: Path) -> None:
    encode(tmp_path / "a.mp4", moving_frames(120), "libx264", "yuv420p", bf="0", g="100", sc_threshold="0")
    decoder, decoded = counting_decoder(tmp_path / "a.mp4")
    table, truth = probe_video(tmp_path / "a.mp4"), decoded_in_order(tmp_path / "a.mp4")
    counts = []
    # from the start; ahead; behind; past the next key frame; from the end, which a decoder does not leave
    for clip in (range(60, 64), range(70, 74), range(71, 73), range(110, 112), range(119, 120), range(1, 2)):
        decoded.clear()
        for index, frame in decoder.read(table, np.array(clip)):
            assert np.array_equal(frame.to_ndarray(format="rgb24"), truth[index])
        counts.append(sum(decoded))
    assert counts == [64, 10, 73, 12, 8, 2]


def counting_decoder(path: Path) -> tuple[decoders.Decoder, list[int]]:
    """A decoder, and how many frames each of its packets gave."""
    decoder, decoded = decoders.Decoder(str(path)), []
    decoder._container = _Counting(decoder._container, decoded)
    return decoder, decoded


class _Counting:
    """A container whose packets count what they decode to."""

    def __init__(self, container, decoded: list[int]) -> None:
        self.container, self.decoded = container, decoded

    def seek(self, *arguments, **options) -> None:
        self.container.seek(*arguments, **options)

    def demux(self, stream):
        for packet in self.container.demux(stream):
            yield _CountingPacket(packet, self.decoded)


class _CountingPacket:
    def __init__(self, packet, decoded: list[int]) -> None:
        self.packet, self.pts, self.decoded = packet, packet.pts, decoded

    def decode(self):
        frames = self.packet.decode()
        self.decoded.append(len(frames))
        return frames
