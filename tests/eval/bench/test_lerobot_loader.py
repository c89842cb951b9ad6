from pathlib import Path

import av
import pytest
import torch
from bench.lerobot_loader import BenchConfig, main, measure, run, show, write_set

from robotwin_adapters.open_dataset import open_dataset

BRIEF = BenchConfig(episodes=1, frames=9, rounds=1, seconds=0.01)


def test_a_set_encoded_as_lerobot_does_reads_as_the_other_one(tmp_path: Path) -> None:
    pictures = {}
    for codec in ("h264", "av1"):
        write_set(tmp_path / codec, (64, 64), codec, BRIEF)
        (path,) = (tmp_path / codec).glob("videos/**/*.mp4")
        with av.open(str(path)) as container:
            assert container.streams.video[0].codec_context.name.endswith(("h264", "av1", "dav1d"))
            packets = [packet for packet in container.demux(video=0) if packet.size]
        assert packets[0].is_keyframe
        assert codec == "h264" or sum(packet.is_keyframe for packet in packets) >= 4
        episode = open_dataset(tmp_path / codec)[0]
        pictures[codec] = next(iter(episode.frames.values())).read(range(9)).astype(float)
    assert abs(pictures["h264"] - pictures["av1"]).mean() < 6  # two lossy encodings of one picture


def test_both_ways_are_compared_on_the_same_clips() -> None:
    def ours(number: int) -> torch.Tensor:
        return torch.full((2, 3, 4, 4), number, dtype=torch.uint8)

    case = measure({"ours": ours, "lerobot": lambda n: ours(n).float() / 255}, 5, BRIEF)
    assert case["largest_difference"] == 0
    assert case["ours"] > 0 < case["ratio"]
    other = measure({"ours": ours, "lerobot": lambda n: ours(n).float() / 255 + 1}, 5, BRIEF)
    assert other["largest_difference"] == 255
    assert "ratio" in show({"set": "x", "clip": 17, **case})


def test_it_measures_where_lerobot_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lerobot")
    sizes, frames = ("64x64",), (5,)
    (case, _) = run(
        BenchConfig(episodes=1, frames=17, rounds=1, seconds=0.1, sizes=sizes, clip_frames=frames)
    )
    assert case["largest_difference"] == 0


def test_help_lists_the_keys(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["lerobot_loader.py", "--help"])
    assert main() == 0
    assert "clip_frames=(17, 65)" in capsys.readouterr().out
