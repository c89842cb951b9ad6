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
from tests.support.mutations import faults_in, read_mutant, run_apart, texts_of

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


AMOUNTS = [
    pytest.param(range(20), id="a_few"),
    pytest.param(range(1000, 1500), id="500", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("seeds", AMOUNTS)
@pytest.mark.parametrize("kind", WRITERS)
def test_mutants_are_refused_by_name_or_read(kind: str, seeds: range, tmp_path: Path) -> None:
    write, most_changed = WRITERS[kind]
    write(tmp_path / kind)
    outcomes = run_apart(read_mutant, str(tmp_path / kind), seeds)
    refused, changed = texts_of("refused", outcomes), texts_of("changed", outcomes)
    print(f"{kind}: {len(outcomes)} inputs, {len(refused)} refused, {len(changed)} changed")
    assert len(outcomes) == len(seeds)
    assert faults_in(outcomes) == []
    assert len(refused) >= 0.2 * len(seeds)
    assert len(changed) <= most_changed * len(seeds), changed
