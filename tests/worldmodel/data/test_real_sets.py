"""The way from real files to batches, on two small public sets."""

from pathlib import Path

import pytest
import torch

from robotwin_adapters.open_dataset import open_dataset
from worldmodel.data.batches import BatchSampler, load_batches
from worldmodel.data.clips import ClipConfig, clip_offsets
from worldmodel.data.dataset import ClipDataset
from worldmodel.data.index import index_episodes
from worldmodel.data.latents import LatentCache
from worldmodel.data.splits import SplitConfig

ROBOTS = Path(__file__).parents[3] / "../shared/data/robots"
SETS = {"droid_franka_real": ("0", 2.0, 7), "lerobot_v20_gr1_sim": ("ego_view", 5.0, 44)}


@pytest.mark.parametrize("name", SETS)
def test_files_become_batches(name: str, tmp_path) -> None:
    if not (ROBOTS / name).is_dir():
        pytest.skip(f"no {name} here")
    camera, fps, action_dim = SETS[name]
    source = open_dataset(ROBOTS / name, verify=False)
    clip = ClipConfig(num_frames=5, fps=fps, camera=camera, height=32, width=48, aspect="crop", step=64)
    assert clip_offsets(source[0].fps, clip)[-1] == 4 * source[0].fps / fps
    index = index_episodes([source], clip, SplitConfig(val=0.2, test=0.2))
    assert not index.skipped
    held_out = {record.uid for split in ("val", "test") for record in index.of(split)}
    assert held_out
    assert held_out.isdisjoint(record.uid for record in index.of("train"))

    train = ClipDataset(index, "train", index.normalizer())
    batch = next(load_batches(train, BatchSampler(len(train), 2).stream()))
    assert batch.frames.shape == (2, 5, 3, 32, 48)
    assert batch.frames.float().std() > 10
    assert batch.robot_actions.shape == (2, 4, action_dim)
    assert batch.robot_actions.abs().max() <= 1

    records = index.of("train")[:2]
    table = LatentCache(str(tmp_path), "every fourth").build(
        index, lambda x: x.transpose(1, 2)[:, :, ::4], records
    )
    cached = ClipDataset(index, "train", index.normalizer(), latents=table)
    expected = train[0].frames[::4].transpose(0, 1).float() / 127.5 - 1
    torch.testing.assert_close(cached[0].latents.float(), expected, atol=1e-3, rtol=0)
    assert torch.equal(cached[0].robot_actions, train[0].robot_actions)
