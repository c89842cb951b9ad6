"""Pictures by context for training and evaluation: rendered, drawn from factor data, or read from folders."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from worldmodel.checked import check_ranges
from worldmodel.context_module.data.factor_contexts import Change, FactorContexts
from worldmodel.context_module.data.folders import OBSERVATIONAL, open_context_folder
from worldmodel.context_module.data.quad import Quad
from worldmodel.context_module.data.types import ContextBatch, ContextDataset, Do, training_contexts
from worldmodel.mddiff.data.factors import CACHE, FactorDataConfig, open_factor_data
from worldmodel.types import evenly_spread

PRINTED = 8  # pictures of each context that identify a dataset


@dataclass(frozen=True)
class ContextDataConfig:
    """Which pictures are opened, and from where."""

    path: str = "quad"  # quad, quad_causal, rooms, a file of factor data, or a folder of contexts
    size: int = 64  # pixels a side
    num_pictures: int = 50_000  # training pictures of each context, where they are drawn
    num_test: int = 10_000  # test pictures of each context, where they are drawn
    change: Change = "shift"  # factor data: an intervention fixes a factor or shifts it to its upper values
    counts: tuple[int, ...] = ()  # factor data: evenly spread values kept of each factor; empty = all
    cache: str = CACHE  # folder for rendered or unpacked data

    def __post_init__(self) -> None:
        most = 100_000_000
        check_ranges(self, size=(1, 4096), num_pictures=(1, most), num_test=(1, most), counts=(1, most))


def open_contexts(config: ContextDataConfig, split: Literal["train", "test"]) -> ContextDataset:
    """The pictures that a config names."""
    count = config.num_pictures if split == "train" else config.num_test
    if config.path in ("quad", "quad_causal"):
        return Quad(config.path, count, config.size, split)  # type: ignore[arg-type]  # one of the two
    if _is_context_folder(Path(config.path)):
        return open_context_folder(config.path, split, config.size)
    factors = open_factor_data(FactorDataConfig(config.path, config.counts, config.size, config.cache))
    return FactorContexts(factors, count, config.change, split)


def _is_context_folder(path: Path) -> bool:
    known = (*OBSERVATIONAL, "train/raw_latents.npy")
    return path.is_dir() and any((path / name).exists() for name in known)


class ContextPictures:
    """The training pictures of some contexts, loaded by `fit` in batches of one context each."""

    def __init__(self, dataset: ContextDataset, contexts: Literal["all", "observational"]) -> None:
        self.dataset = dataset
        chosen = training_contexts(len(dataset.concept_names))
        self.contexts: tuple[Do, ...] = chosen if contexts == "all" else chosen[:1]

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices: list[int]) -> ContextBatch:
        """The context is drawn from the order of the pictures, so it depends only on (seed, step, slot)."""
        do = self.contexts[indices[0] % len(self.contexts)]
        return ContextBatch(self.dataset.images(do, np.asarray(indices, np.int64)), do)


def load_contexts(
    dataset: ContextPictures, batches: Iterable[list[int]], num_workers: int = 0, pin_memory: bool = False
) -> Iterator[ContextBatch]:
    """Batches of one context each, for `fit(load=...)`."""
    if num_workers:
        warnings.warn(
            f"num_workers={num_workers} is ignored: pictures are made in this process", stacklevel=2
        )
    for indices in batches:
        batch = dataset.batch(indices)
        yield ContextBatch(batch.images.pin_memory(), batch.do) if pin_memory else batch


def context_identity(pictures: ContextPictures) -> dict[str, Any]:
    """Names, number and a sample of each context: a resumed run compares them to detect changed data."""
    indices = np.array(evenly_spread(len(pictures), PRINTED, round_down=True), np.int64)
    digest = hashlib.sha256()
    for do in pictures.contexts:
        digest.update(pictures.dataset.images(do, indices).numpy().tobytes())
    return {
        "name": pictures.dataset.name,
        "concepts": list(pictures.dataset.concept_names),
        "contexts": [list(do) for do in pictures.contexts],
        "num_pictures": len(pictures),
        "sample": digest.hexdigest()[:16],
    }
