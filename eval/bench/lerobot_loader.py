"""Clips per CPU second: our loader compared with LeRobot's own, on the same files.

    python eval/bench/lerobot_loader.py [key=value ...]        --help lists the keys

Needs `lerobot` 0.4, which reads LeRobot v3.0, and `torchcodec`, its usual decoder. Neither is a dependency of
this package. Both read the same random clips with all frames at the recorded size. Rounds alternate and the
median is reported, by CPU time of the process. Ours returns uint8 and normalized actions, LeRobot's float32.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torch import Tensor

from robotwin_adapters.lerobot.write import write_lerobot
from robotwin_adapters.open_dataset import open_dataset
from worldmodel.cli_errors import one_way_out
from worldmodel.config import describe_config, load_config
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset
from worldmodel.data.index import index_episodes
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source

ALL_TRAIN = SplitConfig(val=0.0, test=0.0)
AS_LEROBOT = {"crf": "30", "g": "2", "preset": "12"}  # AV1 with a key frame every other frame


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, and for how long."""

    sets: tuple[str, ...] = ()  # LeRobot v3.0 folders with one camera; empty: written here
    sizes: tuple[str, ...] = ("64x64", "480x640")  # height x width of the sets that are written
    codecs: tuple[str, ...] = ("h264", "av1")  # of the generated datasets: as we write them, as LeRobot does
    episodes: int = 8  # written for each size
    frames: int = 161  # of each episode
    clip_frames: tuple[int, ...] = (17, 65)  # short and long clips
    backend: str = ""  # LeRobot's decoder: torchcodec or pyav; empty: its own choice
    rounds: int = 5  # of both
    seconds: float = 2.0  # least CPU time per round
    seed: int = 0  # of the clips' order
    out: str = ""  # JSON file for the figures; empty: printed only


Reader = Callable[[int], Tensor]


def readers(folder: Path, clip_frames: int, backend: str) -> tuple[dict[str, Reader], int]:
    """Name -> function that reads clip number n (ours uint8, theirs float), and the number of clips."""
    source = open_dataset(folder, verify=False)
    height, width = next(iter(source[0].frames.values())).size
    clip = ClipConfig(num_frames=clip_frames, height=height, width=width, step=1)
    index = index_episodes([source], clip, ALL_TRAIN)
    ours = ClipDataset(index, "train", index.normalizer())
    theirs = _lerobot_dataset(folder, clip_frames, backend)
    (camera,) = theirs.meta.video_keys
    firsts = [theirs.meta.episodes[record.episode]["dataset_from_index"] for record in index.records]
    rows = [
        first + start for first, record in zip(firsts, index.records, strict=True) for start in record.starts
    ]
    ways: dict[str, Reader] = {
        "ours": lambda number: _frames(ours[number].frames),
        "lerobot": lambda number: theirs[rows[number]][camera],
    }
    return ways, len(ours)


def _frames(frames: Tensor | None) -> Tensor:
    assert frames is not None, "clips were opened with frames"
    return frames


def _lerobot_dataset(folder: Path, clip_frames: int, backend: str) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    plain = LeRobotDataset("bench/set", root=folder)
    times = [step / plain.fps for step in range(clip_frames)]
    wanted = {**dict.fromkeys(plain.meta.video_keys, times), "action": times[:-1]}
    return LeRobotDataset("bench/set", root=folder, delta_timestamps=wanted, video_backend=backend or None)


def measure(ways: dict[str, Reader], count: int, config: BenchConfig) -> dict[str, float]:
    """Median clips per CPU second of both, their ratio, and the difference of their pictures."""
    order = np.random.default_rng(config.seed).permutation(count)
    ours, theirs = (ways[name](int(order[0])).float() for name in ("ours", "lerobot"))
    difference = float((ours - theirs.mul(255).round()).abs().max())
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(config.rounds):
        for name, read in ways.items():
            found[name].append(_rate(read, np.roll(order, -97 * number), config.seconds))
    ratios = [one / other for one, other in zip(found["ours"], found["lerobot"], strict=True)]
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {**medians, "ratio": statistics.median(ratios), "largest_difference": difference}


def _rate(read: Reader, order: np.ndarray, seconds: float) -> float:
    read(int(order[0]))
    start, done = time.process_time(), 0
    while (spent := time.process_time() - start) < seconds:
        done += 1
        read(int(order[done % len(order)]))
    return done / spent


def write_set(folder: Path, size: tuple[int, int], codec: str, config: BenchConfig) -> None:
    """Write moving shapes as a LeRobot v3.0 folder; `av1` re-encodes the video as LeRobot would."""
    write_lerobot(synthetic_source(config.episodes, config.frames, size), folder)
    if codec == "av1":
        for path in folder.glob("videos/**/*.mp4"):
            _encode_again(path)


def _encode_again(path: Path) -> None:
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate or Fraction(30)
        images = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libsvtav1", rate=rate, options=AS_LEROBOT)
        (stream.height, stream.width), stream.pix_fmt = images[0].shape[:2], "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def run(config: BenchConfig) -> list[dict[str, Any]]:
    """Run all cases."""
    cases = []
    with tempfile.TemporaryDirectory() as root:
        for size in () if config.sets else config.sizes:
            height, width = (int(part) for part in size.split("x"))
            for codec in config.codecs:
                write_set(Path(root, f"{size}_{codec}"), (height, width), codec, config)
        for folder in map(Path, config.sets or sorted(Path(root).iterdir())):
            for clip_frames in config.clip_frames:
                ways, count = readers(folder, clip_frames, config.backend)
                cases.append({"set": folder.name, "clip": clip_frames, **measure(ways, count, config)})
                print(show(cases[-1]), flush=True)
    return cases


def show(case: dict[str, Any]) -> str:
    """Format a case on one line."""
    return (
        f"{case['set']:24} {case['clip']:>3} frames  ours {case['ours']:7.1f}  lerobot {case['lerobot']:7.1f}"
        f"  ratio {case['ratio']:.2f}  largest difference {case['largest_difference']:.0f}"
    )


@one_way_out
def main() -> None:
    torch.set_num_threads(1)
    if "--help" in sys.argv:
        print(__doc__, *describe_config(BenchConfig), sep="\n")
        return
    config = load_config(BenchConfig, None, sys.argv[1:])
    result = {"config": asdict(config), "cases": run(config)}
    if config.out:
        Path(config.out).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
