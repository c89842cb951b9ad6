"""Damaged files through every reader of named arrays: no crash, no hang, refused by name or read."""

from collections.abc import Callable
from pathlib import Path

import numcodecs
import pytest

from tests.robotwin_adapters.arrays.test_loose_files import (
    write_episode_list,
    write_frame_list,
    write_picture_folders,
)
from tests.robotwin_adapters.test_annotations import write_flat
from tests.support.array_sets import (
    write_agibot,
    write_aloha,
    write_calvin,
    write_droid,
    write_npz,
    write_rlds,
    write_robomimic,
    write_variable,
    write_zarr,
    write_zarr_v3,
)
from tests.support.mutations import count_outcomes

# Raw numbers in HDF5 have no checksum: a flipped bit there is another good number. At most this share.
WRITERS: dict[str, tuple[Callable[[Path], object], float]] = {
    "agibot": (write_agibot, 0.1),
    "aloha": (write_aloha, 0.15),
    "aloha_jpeg": (lambda folder: write_aloha(folder, compress=True), 0.25),
    "rlds": (lambda folder: write_rlds(folder, name="set"), 0.0),
    "npz": (write_npz, 0.0),
    "flat_jsonl": (lambda folder: write_flat(folder, ".jsonl"), 0.3),  # a digit is another digit
    "flat_npy": (lambda folder: write_flat(folder, ".npy"), 0.4),
    "picture_folders": (write_picture_folders, 0.4),  # plain numbers have no checksum
    "frame_list": (write_frame_list, 0.3),
    "episode_list": (write_episode_list, 0.3),
    "calvin": (write_calvin, 0.1),  # the borders of episodes have no checksum
    "zarr": (lambda folder: write_zarr(folder / "s.zarr", compressor=numcodecs.Blosc("lz4")), 0.2),
    "zarr_v3": (lambda folder: write_zarr_v3(folder / "s.zarr"), 0.05),
    "zarr_v3_shards": (lambda folder: write_zarr_v3(folder / "s.zarr", per_shard=2), 0.05),
    "droid": (write_droid, 0.1),
    "variable_jpeg": (write_variable, 0.3),
    "robomimic": (lambda folder: write_robomimic(folder / "demos.hdf5"), 0.15),
}


def check(kind: str, folder: Path, first_seed: int, count: int) -> None:
    write, most_changed = WRITERS[kind]
    write(folder / kind)
    outcomes = count_outcomes(folder / kind, range(first_seed, first_seed + count))
    print(kind, dict(outcomes))
    assert outcomes["refused"] >= 0.2 * count, outcomes
    assert outcomes["changed"] <= most_changed * count, outcomes


@pytest.mark.parametrize("kind", WRITERS)
def test_a_few_mutations(tmp_path: Path, kind: str) -> None:
    check(kind, tmp_path, first_seed=0, count=20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_500_mutations(tmp_path: Path, kind: str) -> None:
    check(kind, tmp_path, first_seed=1000, count=500)
