import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from worldmodel.data.batches import BatchSampler, load_batches
from worldmodel.data.clips import ClipConfig, cut_clip
from worldmodel.data.dataset import MAX_OPEN_EPISODES, ClipDataset, build_clip_dataset, collate_clips
from worldmodel.data.index import index_episodes
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.types import Episode

CLIP = ClipConfig(num_frames=9, height=16, width=16)
ALL_TRAIN = SplitConfig(val=0.0, test=0.0)


class PatchedSource:
    """A source in which some episodes are changed, or fail to open."""

    def __init__(self, source, changes: dict[int, Callable[[Episode], Episode]]) -> None:
        self.source, self.changes, self.opened = source, changes, 0

    @property
    def name(self) -> str:
        return self.source.name

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Episode:
        self.opened += 1
        return self.changes.get(index, lambda episode: episode)(self.source[index])


class BrokenFrames:
    size = (64, 64)

    def __init__(self, count: int, file: str) -> None:
        self.count, self.file = count, file

    def __len__(self) -> int:
        return self.count

    def read(self, indices):
        raise ValueError(f"{self.file}: frame {indices[0]} is no JPEG")


def unreadable(episode: Episode) -> Episode:
    raise ValueError(f"{episode.source}: truncated file")


def with_nan(episode: Episode) -> Episode:
    actions = episode.robot_actions.copy()
    actions[4, 2] = np.nan
    return replace(episode, robot_actions=actions)


def broken_pictures(episode: Episode) -> Episode:
    return replace(episode, frames={"head": BrokenFrames(episode.num_frames, episode.source)})


BAD = {
    "truncated file": unreadable,
    "action 4 holds nan in dimension 'joint2'": with_nan,
    "31 actions need 32 frames, camera has 33": lambda e: replace(e, robot_actions=e.robot_actions[:-1]),
    "14 action dimensions, but 1 names": lambda e: replace(e, action_names=("x",)),
    "no camera": lambda e: replace(e, frames={}),
    "fps is 0.0, expected 0.001": lambda e: replace(e, fps=0.0),
    "differ from": lambda e: replace(e, action_names=e.action_names[::-1]),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_episode_stops_with_its_file(message: str) -> None:
    source = PatchedSource(synthetic_source(5, size=(16, 16)), {3: BAD[message]})
    with pytest.raises(ValueError, match=message) as caught:
        index_episodes([source], CLIP, ALL_TRAIN)
    assert "synthetic/episode3" in str(caught.value)


def test_bad_episodes_are_skipped_counted_and_listed() -> None:
    source = PatchedSource(synthetic_source(10, size=(16, 16)), dict(enumerate(BAD.values(), 2)))
    index = index_episodes([source], CLIP, ALL_TRAIN, on_bad="skip")
    assert [record.episode for record in index.records] == [0, 1, 9]
    assert [bad.where for bad in index.skipped] == [f"synthetic[{i}]" for i in range(2, 9)]
    for bad, message in zip(index.skipped, BAD, strict=True):
        assert message in bad.reason
    assert "7 unreadable" in index.summary()


def test_short_episodes_are_noted_apart() -> None:
    index = index_episodes([synthetic_source(2, 8), synthetic_source(2, 9, name="good")], CLIP, ALL_TRAIN)
    assert index.too_short == {"synthetic/episode0": 8, "synthetic/episode1": 8}
    assert [len(record.starts) for record in index.records] == [1, 1]


def test_unreadable_pictures_are_found_when_all_are_decoded() -> None:
    source = PatchedSource(synthetic_source(3, size=(16, 16)), {1: broken_pictures})
    assert not index_episodes([source], CLIP, ALL_TRAIN, on_bad="skip").skipped
    found = index_episodes([source], CLIP, ALL_TRAIN, on_bad="skip", decode_all=True).skipped
    assert ["episode1: frame 0 is no JPEG" in bad.reason for bad in found] == [True]


def test_unreadable_pictures_met_while_reading() -> None:
    source = PatchedSource(synthetic_source(3, 17, size=(16, 16)), {1: broken_pictures})
    index = index_episodes([source], CLIP, ALL_TRAIN)
    stopping = ClipDataset(index, "train", index.normalizer())
    with pytest.raises(ValueError, match="synthetic/episode1: frame 0 is no JPEG"):
        list(load_batches(stopping, BatchSampler(6, 1, shuffle=False).stream()))
    skipping = ClipDataset(index, "train", index.normalizer(), on_bad="skip")
    with pytest.warns(UserWarning, match="skipped a clip: synthetic/episode1"):
        assert skipping[2].source == "synthetic/episode2#0"  # the next clip that can be read
    assert {bad.where for bad in skipping.skipped} == {"synthetic/episode1"}
    hopeless = PatchedSource(source.source, dict.fromkeys(range(3), broken_pictures))
    index = index_episodes([hopeless], CLIP, ALL_TRAIN)
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(ValueError, match="none of 6 clips"):
        ClipDataset(index, "train", index.normalizer(), on_bad="skip")[0]


def reordered(episode: Episode) -> Episode:
    return replace(episode, action_names=episode.action_names[::-1])


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_robot_with_other_actions_than_the_scales_is_refused_with_its_file(split: str) -> None:
    source, splits = (
        synthetic_source(4, size=(16, 16)),
        SplitConfig(val=0.0, test=0.0, val_uids=("episode3",)),
    )
    known = index_episodes([source], CLIP, splits).normalizer()
    other = index_episodes([PatchedSource(source, dict.fromkeys(range(4), reordered))], CLIP, splits)
    file = {"train": "synthetic/episode0", "val": "synthetic/episode3"}[split]
    with pytest.raises(ValueError, match=f"{file}: actions of 'a': expected names .*'joint0'.*, got"):
        ClipDataset(other, split, known)


def test_one_held_out_episode_with_other_actions_is_refused_when_read() -> None:
    source, splits = synthetic_source(4, size=(16, 16)), SplitConfig(val=1.0, test=0.0)
    known = index_episodes([source], CLIP, ALL_TRAIN).normalizer()
    mixed = ClipDataset(index_episodes([PatchedSource(source, {2: reordered})], CLIP, splits), "val", known)
    assert mixed[0].source == "synthetic/episode0#0"
    with pytest.raises(ValueError, match="synthetic/episode2: actions of 'a': expected names"):
        [mixed[number] for number in range(len(mixed))]


def test_every_clip_is_the_one_its_source_names() -> None:
    source = synthetic_source(3, 27, size=(16, 16))
    dataset = build_clip_dataset([source], config=CLIP, splits=ALL_TRAIN)
    assert len(dataset) == 9
    assert len({dataset[i].source for i in range(9)}) == 9
    for i in range(9):
        clip = dataset[i]
        episode, start = int(clip.source[-4:].split("#")[0].lstrip("e")), int(clip.source.split("#")[1])
        frames, actions = cut_clip(source[episode], start, CLIP)
        assert torch.equal(clip.frames, frames)
        assert torch.equal(clip.robot_actions, dataset.normalizer.normalize(actions, "a"))
    with pytest.raises(IndexError):
        dataset[9]


def test_statistics_come_from_the_training_split_only() -> None:
    def enlarge(episode: Episode) -> Episode:
        return replace(episode, robot_actions=episode.robot_actions * 1000)

    splits = SplitConfig(val=0.0, test=0.0, test_uids=("episode2",), val_uids=("episode1",))
    source = PatchedSource(synthetic_source(6), {1: enlarge, 2: enlarge})
    index = index_episodes([source], CLIP, splits)
    assert max(index.stats["a"].maximum) <= 1
    expected = np.concatenate([source[i].robot_actions for i in (0, 3, 4, 5)])
    np.testing.assert_allclose(index.stats["a"].q99, np.quantile(expected, 0.99, axis=0))
    assert [record.uid for record in index.of("val")] == ["episode1"]


def test_mixed_embodiments_share_one_batch() -> None:
    sources = [
        synthetic_source(2, 9, size=(16, 16), embodiments=("six",)),
        synthetic_source(2, 9, size=(20, 30), action_dim=16, embodiments=("seven",)),
    ]
    dataset = build_clip_dataset(sources, config=CLIP, splits=ALL_TRAIN)
    batch = collate_clips([dataset[i] for i in range(4)])
    assert batch.frames.shape == (4, 9, 3, 16, 16)
    assert batch.robot_actions.shape == (4, 8, 16)
    assert batch.action_mask.sum(1).tolist() == [14, 14, 16, 16]
    assert dataset.normalizer.embodiments == ("seven", "six")
    assert batch.embodiment.tolist() == [1, 1, 0, 0]
    assert (batch.robot_actions[:2, :, 14:] == 0).all()


def test_a_normalizer_without_the_embodiment_is_refused() -> None:
    normalizer = index_episodes([synthetic_source(embodiments=("a",))], CLIP, ALL_TRAIN).normalizer()
    with pytest.raises(
        ValueError, match=r"unknown embodiment 'b'; statistics exist for a\. .*mapping.*: embodiment: a"
    ):
        build_clip_dataset([synthetic_source(embodiments=("b",))], "train", CLIP, ALL_TRAIN, normalizer)


def test_an_empty_split_says_what_there_is() -> None:
    with pytest.raises(ValueError, match="no clips in split 'val': train 8 clips of 2 episodes"):
        build_clip_dataset([synthetic_source(2)], "val", CLIP, ALL_TRAIN)


def test_few_episodes_are_open_at_a_time() -> None:
    source = PatchedSource(synthetic_source(MAX_OPEN_EPISODES + 4, 17, size=(16, 16)), {})
    dataset = build_clip_dataset([source], config=CLIP, splits=ALL_TRAIN)
    source.opened = 0
    for i in range(len(dataset)):
        dataset[i]
    assert source.opened == MAX_OPEN_EPISODES + 4  # both clips of an episode come from one opening
    assert len(dataset._open) == MAX_OPEN_EPISODES
    assert len(pickle.dumps(dataset)) < 40_000  # workers get records, not arrays


def test_spawned_workers_read_the_same_batches(capfd) -> None:
    sources = [synthetic_source(3, 17, size=(16, 16), embodiments=("a", "b"))]
    dataset = build_clip_dataset(sources, config=CLIP, splits=ALL_TRAIN)
    sampler = BatchSampler(len(dataset), batch_size=2, seed=3)
    state = torch.random.get_rng_state()
    alone = list(load_batches(dataset, sampler.epoch(1)))
    endless = load_batches(dataset, sampler.stream(1), num_workers=2)
    helped = list(islice(endless, 3))
    del endless  # a stream that is left in the middle must not crash its workers
    assert capfd.readouterr().err == ""
    assert len(alone) == 3
    assert torch.equal(torch.random.get_rng_state(), state)  # loading leaves the global generator alone
    for ours, theirs in zip(alone, helped, strict=True):
        assert ours.sources == theirs.sources
        assert torch.equal(ours.frames, theirs.frames)
        assert torch.equal(ours.robot_actions, theirs.robot_actions)


def test_listed_episodes_must_exist():
    source = synthetic_source(4, size=(16, 16))
    typo = SplitConfig(test_uids=("episod2",))
    with pytest.raises(ValueError, match=r"splits\.test_uids lists 'episod2', .* near it: episode"):
        index_episodes([source], CLIP, typo)
    assert len(index_episodes([source], CLIP, typo, uids_must_exist=False).records) == 4


def test_an_empty_split_says_what_to_set():
    index = index_episodes([synthetic_source(2, size=(16, 16))], CLIP, ALL_TRAIN)
    with pytest.raises(ValueError, match=r"data\.splits\.val_uids=\[episode1\] .* validation\.num_clips=0"):
        ClipDataset(index, "val", index.normalizer())
    with pytest.raises(ValueError, match=r"Set data\.splits\.test_uids=\[episode1\] or a larger"):
        ClipDataset(index, "test", index.normalizer())


def test_an_unknown_robot_and_an_unknown_camera_say_what_to_set():
    index = index_episodes([synthetic_source(2, size=(16, 16))], CLIP, ALL_TRAIN)
    with pytest.raises(ValueError, match=r"mapping \(--mapping\): embodiment: a"):
        index.normalizer().check_names("renamed", ())
    with pytest.raises(ValueError, match=r"data\.clip\.camera \(training\) or --camera"):
        index_episodes([synthetic_source(2, size=(16, 16))], replace(CLIP, camera="top"), ALL_TRAIN)
