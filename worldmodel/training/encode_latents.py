"""Fill the latent cache of a training config, with several processes:

worldmodel encode-latents CONFIG.yaml --processes 8 key=value ...
worldmodel encode-latents CONFIG.yaml --processes 8 --part 0/4       on the first of four machines

It uses the config of `worldmodel train` and reads its `data`, `model.vae` and `fit.machine.device`. Episodes
that are already in the cache are only checked, so it can be stopped and restarted; training encodes what is
missing.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event

import torch
from tqdm import tqdm

from worldmodel.cli_errors import one_way_out
from worldmodel.config import load_config
from worldmodel.data.index import EpisodeIndex
from worldmodel.device import find_device
from worldmodel.models.vae import VideoAutoencoder, load_vae
from worldmodel.signals import end_on_signals, obey_parent, starting_workers, stop_on_signals
from worldmodel.training.datasets import open_index
from worldmodel.training.model_data import ENCODED, cache_latents, on_device
from worldmodel.training.world_model import TrainConfig


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Encode in parallel and print a one-line summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument(
        "--processes", type=int, default=1, help="encoders at a time; on GPUs they take turns"
    )
    parser.add_argument(
        "--part", default="0/1", metavar="I/N", help="every N-th episode from the I-th on, counted from 0"
    )
    arguments = parser.parse_intermixed_args(argv)
    config = load_config(TrainConfig, arguments.config, arguments.overrides)
    if not config.data.latents or not config.model.vae:
        raise ValueError("data.latents (the cache folder) and model.vae must be set")
    with end_on_signals(ENCODED.format(config.data.latents)):
        built = encode_all(config, arguments.processes, parse_part(arguments.part))
    print(f"{config.data.latents}: {built} episodes encoded now")
    return 0


def parse_part(text: str) -> slice:
    """'1/4' -> every fourth episode, starting with the second."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit()) or int(number) >= int(count):
        raise ValueError(f"--part is I/N with I from 0 to N - 1, for example 0/4; got {text!r}")
    return slice(int(number), None, int(count))


def encode_all(config: TrainConfig, num_processes: int, part: slice = slice(None)) -> int:
    """Encode with this many processes; returns the number of newly encoded episodes."""
    numbers = range(len(open_index(config.data).records))[part]
    if num_processes == 1:
        vae = on_device(load_vae(config.model.vae), find_device(config.fit.machine.device))
        index, reader = open_index(config.data), config.model.reader
        return cache_latents(config.data, index, vae, part=part, reader=reader, with_progress=True).built
    context = multiprocessing.get_context("spawn")
    devices, is_stopping = context.SimpleQueue(), context.Event()
    device = find_device(config.fit.machine.device).type
    num_gpus = torch.cuda.device_count() if device == "cuda" else 0
    for rank in range(num_processes):
        devices.put(f"cuda:{rank % num_gpus}" if num_gpus else device)
    with starting_workers():
        pool = context.Pool(num_processes, _open_worker, (config, devices, is_stopping))
    built = 0
    with pool, stop_on_signals() as stop:
        for count in tqdm(pool.imap_unordered(_encode_episode, numbers), total=len(numbers), desc="episodes"):
            built += count
            if stop.is_received:
                is_stopping.set()  # episodes in progress are finished
    stop.check(ENCODED.format(config.data.latents))
    return built


@dataclass(frozen=True)
class _Worker:
    config: TrainConfig
    index: EpisodeIndex
    vae: VideoAutoencoder
    is_stopping: Event


_worker: (
    _Worker  # one per process: loading an autoencoder for every episode would take longer than encoding it
)


def _open_worker(
    config: TrainConfig, devices: "multiprocessing.SimpleQueue[str]", is_stopping: Event
) -> None:
    global _worker
    obey_parent()
    torch.set_num_threads(1)
    vae = on_device(load_vae(config.model.vae), devices.get())
    _worker = _Worker(config, open_index(config.data), vae, is_stopping)


def _encode_episode(number: int) -> int:
    if _worker.is_stopping.is_set():
        return 0
    part = slice(number, number + 1)
    config = _worker.config
    reader = config.model.reader
    return cache_latents(config.data, _worker.index, _worker.vae, part=part, reader=reader).built
