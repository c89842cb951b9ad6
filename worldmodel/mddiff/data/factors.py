"""Opens image datasets with ground-truth factors: `rooms`, which is rendered on first use, or a file."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from worldmodel.checked import check_ranges
from worldmodel.mddiff.data.open_file import open_factor_file
from worldmodel.mddiff.data.rooms import open_rooms
from worldmodel.mddiff.data.types import FactorDataset
from worldmodel.mddiff.data.views import shrunk, sub_grid
from worldmodel.types import evenly_spread

CACHE = "outputs/factors"


@dataclass(frozen=True)
class FactorDataConfig:
    """Which images to load, and at what size."""

    path: str = "rooms"  # rooms, or the published file or folder of Shapes3D, MPI3D, Cars3D or dSprites
    counts: tuple[int, ...] = ()  # number of values to keep of each factor, evenly spaced; empty = all
    size: int = 64  # pixels per side
    cache: str = CACHE  # folder for rendered or unpacked data

    def __post_init__(self) -> None:
        check_ranges(self, size=(1, 4096), counts=(1, 1_000_000))


def open_factors(name_or_path: str, cache: str = CACHE) -> FactorDataset:
    """Open a dataset by path; `rooms` is rendered into the cache on first use (about a minute)."""
    if name_or_path != "rooms":
        return open_factor_file(name_or_path, cache)
    path = Path(cache) / "rooms.safetensors"
    if not path.exists():
        # Imported here: only rendering needs the simulator.
        from worldmodel.mddiff.data.render_rooms import render_rooms

        render_rooms(path)
    return open_rooms(path)


def open_factor_data(config: FactorDataConfig) -> FactorDataset:
    """The images that a config describes, reduced to its factor values and its size."""
    return shrunk(sub_grid(open_factors(config.path, config.cache), config.counts), config.size)


def data_identity(dataset: FactorDataset) -> dict[str, Any]:
    """Sizes and a sample of the images: a resumed run compares them to detect changed data."""
    sample = dataset.images(np.array(evenly_spread(len(dataset), 32, round_down=True), np.int64))
    return {
        "name": dataset.name,
        "factor_sizes": list(dataset.factor_sizes),
        "sample": hashlib.sha256(sample.numpy().tobytes()).hexdigest()[:16],
    }


def load_images(
    dataset: FactorDataset, batches: Iterable[list[int]], num_workers: int = 0, pin_memory: bool = False
) -> Iterator[UInt8[Tensor, "n 3 H W"]]:
    """Load the images of each batch of indices, for `fit(load=...)`."""
    if num_workers:
        warnings.warn(
            f"num_workers={num_workers} is ignored: pictures are read in this process", stacklevel=2
        )
    for indices in batches:
        images = dataset.images(np.asarray(indices, np.int64))
        yield images.pin_memory() if pin_memory else images
