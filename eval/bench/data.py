"""How fast clips come: our readers and the latent cache against a plain loop over h5py and OpenCV.

    python eval/bench/data.py [key=value ...]        --help lists the keys

Every way reads the same random clips of the same episodes. Rounds of all ways alternate, and the median is
reported. clips/s is by the wall clock, once workers have started. The ratio to the plain loop is by CPU
time of all processes together, round by round, so that other work on the machine does not enter it.
"""

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import h5py
import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode
from worldmodel.cli_errors import one_way_out
from worldmodel.config import describe_config, load_config
from worldmodel.data.batches import BatchSampler, load_batches
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset
from worldmodel.data.index import EpisodeIndex, index_episodes
from worldmodel.data.latents import LatentCache
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.data.video import write_video
from worldmodel.types import Episode

PLAIN, HDF5, MP4, LATENTS = "plain h5py + OpenCV", "HDF5 + JPEG", "mp4 by PyAV", "cached latents"
ALL_TRAIN = SplitConfig(val=0.0, test=0.0)


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, and for how long."""

    episodes: int = 40  # written per resolution
    frames: int = 97  # of each episode
    clip_frames: int = 17  # of each clip
    batch_size: int = 8  # clips
    rounds: int = 5  # of every way
    seconds: float = 1.0  # least time of a round
    sizes: tuple[str, ...] = ("64x64", "240x320")  # height x width of recording and clip
    workers: tuple[int, ...] = (0, 2)  # loading processes
    memory_episodes: tuple[int, ...] = (10, 500)  # datasets whose memory use is compared; empty: not measured
    out: str = ""  # JSON file for the figures; empty: printed only


class PlainClips(Dataset):
    """A clip loader as one writes it in an afternoon."""

    def __init__(
        self, files: list[str], starts: range, num_frames: int, mean: np.ndarray, std: np.ndarray
    ) -> None:
        self.clips = [(file, start) for file in files for start in starts]
        self.num_frames, self.mean, self.std = num_frames, mean, std

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        file, start = self.clips[index]
        frames: list = []
        with h5py.File(file, "r") as episode:
            for t in range(start, start + self.num_frames):
                buffer = np.frombuffer(episode["observation/head_camera/rgb"][t], np.uint8)
                frames.append(cv2.imdecode(buffer, cv2.IMREAD_COLOR))  # RGB: the files hold swapped colors
            actions = episode["joint_action/vector"][start + 1 : start + self.num_frames]
        actions = (actions - self.mean) / self.std
        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2), torch.from_numpy(actions).float()


def make_frames(episode: Episode) -> UInt8[np.ndarray, "t H W 3"]:
    """Moving shapes before a grainy wall, which makes JPEGs of RoboTwin's size: 17 kB at 240x320."""
    frames = episode.frames["head"].read(range(episode.num_frames))
    grain = np.random.default_rng(0).normal(0, 2.5, frames.shape[1:])
    return np.clip(frames + grain, 0, 255).astype(np.uint8)


def write_episodes(folder: Path, config: BenchConfig, size: tuple[int, int]) -> None:
    """The same episodes as RoboTwin HDF5 and as videos with annotations."""
    source = synthetic_source(config.episodes, config.frames, size)
    for number in range(len(source)):
        episode = source[number]
        frames, states = make_frames(episode), episode.robot_states
        assert states is not None
        arms = RobotwinEpisode(
            left_arm=states[:, :6],
            left_gripper=(states[:, 6] + 1) / 2,
            right_arm=states[:, 7:13],
            right_gripper=states[:, 13],
            cameras={"head_camera": CameraRecord(frames)},
        )
        write_robotwin_episode(folder / "hdf5", number, arms)
        write_video(folder / "mp4" / "videos" / "train" / str(number) / "0.mp4", frames, episode.fps)
        annotation = folder / "mp4" / "annotation" / "train" / f"{number}.json"
        annotation.parent.mkdir(parents=True, exist_ok=True)
        annotation.write_text(json.dumps({"states": states.tolist(), "texts": ["bench"]}))


def stand_in_encoder(frames: Float[Tensor, "b t 3 H W"]) -> Float[Tensor, "b c f h w"]:
    """Latents of the Wan VAE's shape (16 channels, 4x8x8 smaller); what they hold does not matter here."""
    small = torch.nn.functional.avg_pool3d(frames.transpose(1, 2)[:, :, ::4], (1, 8, 8))
    mix = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    return torch.einsum("dc,bcfhw->bdfhw", mix, small)


def index_folder(path: Path, config: BenchConfig, size: tuple[int, int]) -> EpisodeIndex:
    """All clips of a dataset on disk."""
    clip = ClipConfig(num_frames=config.clip_frames, height=size[0], width=size[1])
    return index_episodes([open_dataset(path, verify=False)], clip, ALL_TRAIN)


def make_datasets(folder: Path, config: BenchConfig, size: tuple[int, int]) -> dict[str, Dataset]:
    """Way of reading -> its clips, in the same order."""
    hdf5, mp4 = (index_folder(folder / name, config, size) for name in ("hdf5", "mp4"))
    table = LatentCache(str(folder / "cache"), "stand-in").build(hdf5, stand_in_encoder)
    normalizer = hdf5.normalizer()
    files, stats = [record.file for record in hdf5.records], next(iter(hdf5.stats.values()))
    spread = np.maximum(np.subtract(stats.q99, stats.q01) / 2, 1e-3)
    return {
        PLAIN: PlainClips(files, hdf5.records[0].starts, config.clip_frames, np.array(stats.q01), spread),
        HDF5: ClipDataset(hdf5, "train", normalizer),
        MP4: ClipDataset(mp4, "train", mp4.normalizer()),
        LATENTS: ClipDataset(hdf5, "train", normalizer, latents=table),
    }


def batches_of(dataset: Dataset, sampler: BatchSampler, num_workers: int) -> Iterator:
    """Many batches, by our loader or, for the plain clips, by torch's own."""
    if isinstance(dataset, ClipDataset):
        return load_batches(dataset, sampler.stream(), num_workers)
    context = "spawn" if num_workers else None
    loader = DataLoader(
        dataset, batch_sampler=sampler.stream(), num_workers=num_workers, multiprocessing_context=context
    )
    return iter(loader)


def cpu_seconds() -> float:
    """CPU time of this process and of its live workers."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{worker.pid}/stat").read_text() for worker in multiprocessing.active_children()]
    # After the name in brackets, which may hold spaces, user and system time are fields 11 and 12.
    times = [stat.rpartition(")")[2].split()[11:13] for stat in stats]
    return time.process_time() + sum(int(field) for pair in times for field in pair) / ticks


def rates(batches: Iterator, batch_size: int, seconds: float) -> tuple[float, float]:
    """Clips per second on the wall and per CPU second, over at least `seconds`."""
    count, start, cpu = 0, time.perf_counter(), cpu_seconds()
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        count += batch_size
    return count / elapsed, count / (cpu_seconds() - cpu)


def measure(
    datasets: dict[str, Dataset], config: BenchConfig, num_workers: int
) -> dict[str, dict[str, float]]:
    """Median clips per second of every way, and how many times the plain loop's clips per CPU second."""
    length = min(len(dataset) for dataset in datasets.values())  # type: ignore[arg-type]
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in datasets}
    # With workers only one way may be alive at a time, or the others' prefetching would be measured too.
    for _ in range(config.rounds):
        for name, dataset in datasets.items():
            batches = batches_of(dataset, BatchSampler(length, config.batch_size), num_workers)
            for _ in range(
                4 * max(1, num_workers)
            ):  # opens files, starts workers, empties the first prefetch
                next(batches)
            rounds[name].append(rates(batches, config.batch_size, config.seconds))
            del batches
    return {
        name: {
            "clips_per_s": statistics.median(wall for wall, _ in values),
            "times_plain": statistics.median(
                ours / plain for (_, ours), (_, plain) in zip(values, rounds[PLAIN], strict=True)
            ),
        }
        for name, values in rounds.items()
    }


def memory_of(folder: Path, config: BenchConfig, episodes: int) -> dict[str, float]:
    """Resident megabytes of a fresh process that indexes `episodes` episodes and reads 400 random clips."""
    dataset = folder / f"{episodes}"
    for number in range(episodes):
        target = dataset / "data" / f"episode{number}.hdf5"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "hdf5" / "data" / f"episode{number % config.episodes}.hdf5", target)
    command = [sys.executable, __file__, "--memory", str(dataset), str(config.clip_frames)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def report_memory(path: str, clip_frames: int) -> dict[str, float]:
    """The child's side of `memory_of`."""
    before = resident_mb()
    index = index_folder(Path(path), BenchConfig(clip_frames=clip_frames), (64, 64))
    dataset = ClipDataset(index, "train", index.normalizer())
    batches = load_batches(dataset, BatchSampler(len(dataset), 8).stream())
    for _ in range(50):
        next(batches)
    return {"imports_mb": before, "reading_mb": resident_mb()}


def resident_mb() -> float:
    """Resident set of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def show(cases: list[dict]) -> str:
    """The figures as a table."""
    rows = [f"{'size':9}{'workers':>8}  {'way':22}{'clips/s':>10}{'x plain':>9}"]
    for case in cases:
        for name, figures in case["ways"].items():
            rows.append(
                f"{case['size']:9}{case['workers']:>8}  {name:22}"
                f"{figures['clips_per_s']:>10.0f}{figures['times_plain']:>9.2f}"
            )
    return "\n".join(rows)


def run(config: BenchConfig) -> dict:
    """All cases, then memory."""
    cases, memory = [], {}
    with tempfile.TemporaryDirectory() as root:
        for text in config.sizes:
            height, width = (int(part) for part in text.split("x"))
            folder = Path(root, text)
            write_episodes(folder, config, (height, width))
            datasets = make_datasets(folder, config, (height, width))
            for num_workers in config.workers:
                ways = measure(datasets, config, num_workers)
                cases.append({"size": text, "workers": num_workers, "ways": ways})
        for episodes in config.memory_episodes:
            memory[episodes] = memory_of(Path(root, config.sizes[0]), config, episodes)
    return {"config": asdict(config), "cases": cases, "memory": memory}


@one_way_out
def main() -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    if sys.argv[1:2] == ["--memory"]:
        print(json.dumps(report_memory(sys.argv[2], int(sys.argv[3]))))
        return
    if "--help" in sys.argv:
        print(__doc__, *describe_config(BenchConfig), sep="\n")
        return
    config = load_config(BenchConfig, None, sys.argv[1:])
    result = run(config)
    print(show(result["cases"]))
    for episodes, figures in result["memory"].items():
        print(f"{episodes:>5} episodes: {figures['reading_mb']:.0f} MB resident while reading clips")
    print(json.dumps(result))
    if config.out:
        Path(config.out).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
