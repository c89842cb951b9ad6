import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from robotwin_adapters.open_dataset import open_dataset
from tests.support.array_sets import write_droid, write_npz, write_robomimic, write_zarr
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset
from worldmodel.data.index import EpisodeIndex, index_episodes
from worldmodel.data.latents import LatentCache, content_hash, encoder_identity
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.types import FrameReader

CLIP = ClipConfig(num_frames=9, height=16, width=16)
ALL_TRAIN = SplitConfig(val=0.0, test=0.0)


def encode(frames: torch.Tensor) -> torch.Tensor:
    """A stand-in for the VAE: every fourth frame, averaged over 4x4 blocks."""
    return torch.nn.functional.avg_pool3d(frames.transpose(1, 2)[:, :, ::4], (1, 4, 4))


def make_index(episodes: int = 3, config: ClipConfig = CLIP) -> EpisodeIndex:
    return index_episodes([synthetic_source(episodes, 17, size=(16, 16))], config, ALL_TRAIN)


@dataclass(frozen=True)
class VideoLike:
    """Frames that come from the file at `path`."""

    frames: FrameReader
    path: str

    @property
    def size(self) -> tuple[int, int]:
        return self.frames.size

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        return self.frames.read(indices)


def shards(root: Path) -> list[Path]:
    return sorted(root.rglob("*.safetensors"))


def test_cached_clips_are_the_encoded_clips(tmp_path) -> None:
    index = make_index()
    table = LatentCache(str(tmp_path), "vae", "float32").build(index, encode, batch_size=1)
    plain = ClipDataset(index, "train", index.normalizer())
    cached = ClipDataset(index, "train", index.normalizer(), latents=table)
    both = ClipDataset(index, "train", index.normalizer(), latents=table, with_frames=True)
    assert len(cached) == len(plain) == 6
    for i in range(6):
        frames = plain[i].frames.float() / 127.5 - 1
        torch.testing.assert_close(cached[i].latents, encode(frames[None])[0])
        assert torch.equal(cached[i].robot_actions, plain[i].robot_actions)
        assert cached[i].frames is None
        assert torch.equal(both[i].frames, plain[i].frames)
        assert torch.equal(both[i].latents, cached[i].latents)


def test_encoder_gets_frames_from_minus_one_to_one(tmp_path) -> None:
    seen = []
    LatentCache(str(tmp_path), "vae").build(make_index(), lambda x: encode(seen.append(x) or x))
    assert {frames.shape for frames in seen} == {(2, 9, 3, 16, 16)}
    assert min(x.min() for x in seen) >= -1
    assert max(x.max() for x in seen) > 0.5
    assert min(x.min() for x in seen) < -0.5


def test_second_build_reads_only(tmp_path) -> None:
    cache = LatentCache(str(tmp_path), "vae")
    first = cache.build(make_index(), encode)
    second = cache.build(make_index(5), encode)  # two episodes more: the three old shards serve
    assert (first.built, second.built, second.repaired) == (3, 2, 0)
    assert first.paths.items() <= second.paths.items()
    assert sorted(p.suffix for p in tmp_path.rglob("*.*")) == [".safetensors"] * 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_number_types(tmp_path, dtype) -> None:
    index = make_index()
    table = LatentCache(str(tmp_path), "vae", dtype).build(index, encode)
    latents, _ = table.read(index.records[0], 1)
    assert latents.dtype == getattr(torch, dtype)


def test_anything_that_changes_the_latents_changes_the_shard(tmp_path) -> None:
    def path(vae: str = "vae", dtype: str = "float16", config: ClipConfig = CLIP, **changes) -> Path:
        index = make_index(config=config)
        episode = replace(index.open(index.records[0]), **changes)
        return LatentCache(str(tmp_path), vae, dtype).shard_path(episode, index.records[0], config)

    other = synthetic_source(2, 17, size=(16, 16), seed=9)[0]
    variants = [
        path(),
        path(vae="other"),
        path(dtype="float32"),
        path(config=replace(CLIP, height=32)),
        path(config=replace(CLIP, step=3)),
        path(config=replace(CLIP, stride=2)),
        path(config=replace(CLIP, merge="sum")),
        path(frames=other.frames),
        path(robot_actions=other.robot_actions),
    ]
    assert len(set(variants)) == len(variants)
    assert path() == variants[0]


def test_content_follows_the_bytes_of_the_file(tmp_path) -> None:
    file = tmp_path / "episode0.hdf5"
    file.write_bytes(b"first")
    episode = replace(synthetic_source()[0], source=str(file))
    before = content_hash(episode)
    assert content_hash(episode) == before
    os.utime(file, ns=(1, 1))
    assert content_hash(episode) == before  # a copy with another date is the same content
    file.write_bytes(b"other")
    assert content_hash(episode) != before


def test_content_follows_a_video_beside_the_table(tmp_path) -> None:
    table, video = tmp_path / "episode0.json", tmp_path / "0.mp4"
    table.write_text("{}")
    video.write_bytes(b"first")
    episode = synthetic_source()[0]
    reader = VideoLike(episode.frames["head"], str(video))
    episode = replace(episode, source=str(table), frames={"head": reader})
    before = content_hash(episode)
    video.write_bytes(b"other")
    assert content_hash(episode) != before


def test_vae_identity_follows_weights_and_settings() -> None:
    torch.manual_seed(0)
    vae = torch.nn.Conv2d(3, 4, 1)
    first = encoder_identity(vae, {"scale": 1})
    assert encoder_identity(vae, {"scale": 1}) == first
    assert encoder_identity(vae, {"scale": 1, "_name_or_path": "elsewhere"}) == first
    assert encoder_identity(vae, {"scale": 2}) != first
    with torch.no_grad():
        vae.bias[2] += 1e-6
    assert encoder_identity(vae, {"scale": 1}) != first


def flip(at: float):
    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[int(at * (len(data) - 1))] ^= 0x10
        file.write_bytes(bytes(data))

    return damage


DAMAGE = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size - 100),
    "empty": lambda file: os.truncate(file, 0),
    "longer": lambda file: file.open("ab").write(b"more"),
    "text": lambda file: file.write_text("not a shard at all"),
    **{f"flipped at {at:.2f}": flip(at) for at in np.linspace(0, 1, 25)},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_found_and_rebuilt(tmp_path, damage: str) -> None:
    cache, index = LatentCache(str(tmp_path), "vae"), make_index(2)
    cache.build(index, encode)
    victim = shards(tmp_path)[1]
    good = load_file(victim)
    good = {name: tensor.clone() for name, tensor in good.items()}
    DAMAGE[damage](victim)
    table = cache.build(index, encode)
    assert (table.built, table.repaired) == (1, 1)
    again = load_file(victim)
    assert all(torch.equal(again[name], good[name]) for name in good)


def test_a_shard_lost_during_training_is_named(tmp_path) -> None:
    index = make_index()
    table = LatentCache(str(tmp_path), "vae").build(index, encode)
    Path(table.paths[0, 1]).unlink()
    dataset = ClipDataset(index, "train", index.normalizer(), latents=table)
    with pytest.raises(ValueError, match=r"broken latents of synthetic/episode1, build the cache again"):
        dataset[2]


def test_encoders_that_break_the_contract_are_refused(tmp_path) -> None:
    cache = LatentCache(str(tmp_path), "vae")
    with pytest.raises(ValueError, match=r"b=2 and f=3, got \(2, 3, 9, 16, 16\)"):
        cache.build(make_index(), lambda frames: frames.transpose(1, 2))
    with pytest.raises(ValueError, match="synthetic/episode0: latents are not finite in float16"):
        cache.build(make_index(), lambda frames: encode(frames) * 1e6)
    assert not shards(tmp_path)
    skipped = cache.build(make_index(), lambda frames: encode(frames) * 1e6, on_bad="skip").skipped
    assert [bad.where for bad in skipped] == [f"synthetic/episode{i}" for i in range(3)]


def test_the_table_travels_without_its_open_files(tmp_path) -> None:
    index = make_index()
    table = LatentCache(str(tmp_path), "vae").build(index, encode)
    latents, _ = table.read(index.records[2], 1)
    traveled = pickle.loads(pickle.dumps(table))
    assert len(pickle.dumps(table)) < 2000
    assert traveled.paths == table.paths
    assert torch.equal(traveled.read(index.records[2], 1)[0], latents)


def test_reading_maps_the_file(tmp_path) -> None:
    index = make_index()
    table = LatentCache(str(tmp_path), "vae").build(index, encode)
    first, _ = table.read(index.records[0], 0)
    second, _ = table.read(index.records[0], 1)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert table.paths[0, 0] in maps.read_text()


BUILD = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from worldmodel.data import latents
from robotwin_adapters.open_dataset import open_dataset
from tests.support.array_sets import write_droid, write_npz, write_robomimic, write_zarr
from worldmodel.data.clips import ClipConfig
from worldmodel.data.index import index_episodes
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.types import FrameReader

root, me, mode = sys.argv[1:]
clip = ClipConfig(num_frames=9, height=16, width=16)
index = index_episodes([synthetic_source(8, 17, size=(16, 16))], clip, SplitConfig(0.0, 0.0))

def encode(frames):
    time.sleep(0.1)
    return torch.nn.functional.avg_pool3d(frames.transpose(1, 2)[:, :, ::4], (1, 4, 4))

if mode == "together":
    Path(root, me).touch()
    while len(list(Path(root).glob("process*"))) < 2:
        time.sleep(0.01)
else:
    renames = []
    def killed(source, target, replace=os.replace):
        renames.append(target)
        if len(renames) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = killed
table = latents.LatentCache(root + "/cache", "vae").build(index, encode)
print(json.dumps([table.built, table.repaired, sorted(table.paths.values())]))
"""


def start(root: Path, name: str, mode: str) -> subprocess.Popen:
    command = [sys.executable, "-c", BUILD, str(root), name, mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_share_the_work(tmp_path) -> None:
    running = [start(tmp_path, f"process{i}", "together") for i in range(2)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    (built_0, repaired_0, paths_0), (built_1, repaired_1, paths_1) = (json.loads(out) for out, _ in outputs)
    assert built_0 + built_1 == 8  # no shard twice
    assert built_0 > 0
    assert built_1 > 0
    assert (repaired_0, repaired_1) == (0, 0)
    assert paths_0 == paths_1 == [str(path) for path in shards(tmp_path)]
    assert not list(tmp_path.rglob("*.lock"))
    index = make_index(8)
    assert LatentCache(str(tmp_path / "cache"), "vae").build(index, encode).built == 0


def test_a_killed_builder_leaves_no_half_shard(tmp_path) -> None:
    victim = start(tmp_path, "victim", "killed")
    victim.communicate(timeout=120)
    assert victim.returncode == -9
    assert len(shards(tmp_path)) == 2
    assert len(list(tmp_path.rglob(".*.writing"))) == 1
    table = LatentCache(str(tmp_path / "cache"), "vae").build(make_index(8), encode)
    assert (table.built, table.repaired) == (6, 0)
    assert not list(tmp_path.rglob(".*.writing"))
    assert not list(tmp_path.rglob("*.lock"))


def test_an_episode_is_found_again_under_another_name(tmp_path) -> None:
    index, cache = make_index(1), LatentCache(str(tmp_path), "vae")
    record, episode = index.records[0], index.open(index.records[0])
    moved = replace(episode, uid="set/data/episode0")
    path = cache.shard_path(episode, record, CLIP)
    assert cache.shard_path(moved, record, CLIP) == path
    former = cache._path({**cache._described(episode, record, CLIP), "uid": episode.uid})
    former.parent.mkdir(parents=True)
    former.touch()
    assert cache.shard_path(episode, record, CLIP) == former  # of an older version: kept
    assert cache.shard_path(moved, record, CLIP) == path


@pytest.mark.parametrize("kind", ["npz", "droid", "robomimic", "zarr"])
def test_latents_are_found_again_in_a_subfolder_and_after_a_move(tmp_path: Path, kind: str) -> None:
    """What was encoded for a tree of datasets serves one of them alone, and the tree under another name."""
    for place in ("one", "two"):
        target = tmp_path / "data" / place
        if kind == "npz":
            write_npz(target, 2)
        elif kind == "droid":
            write_droid(target, 2)
        elif kind == "robomimic":
            write_robomimic(target / "demos.hdf5")
        else:
            write_zarr(target / "set.zarr")
    cache = LatentCache(str(tmp_path / "cache"), "vae")
    clip = replace(CLIP, num_frames=5)

    def built(path: Path) -> int:
        return cache.build(index_episodes([open_dataset(path)], clip, ALL_TRAIN), encode).built

    assert built(tmp_path / "data") > 0
    assert built(tmp_path / "data/two") == 0
    (tmp_path / "data").rename(tmp_path / "moved")
    assert built(tmp_path / "moved") == 0


def test_a_full_disk_is_no_fault_of_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("worldmodel.data.latents._write_shard", full)
    for on_bad in ("skip", "stop"):
        with pytest.raises(OSError, match="No space left"):
            LatentCache(str(tmp_path), "vae").build(make_index(), encode, on_bad=on_bad)
