import dataclasses
import json

import numpy as np
import pytest
import torch

from worldmodel.data.clips import ClipConfig, cut_clip
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.provenance import TrainedEpisode, TrainedOn, actions_hash
from worldmodel.data.splits import SplitConfig, split_of
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips, shown_size


class Changed:
    """A source whose episodes are changed in one respect."""

    def __init__(self, source, **changes):
        self.source, self.changes, self.name = source, changes, "changed"

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return dataclasses.replace(self.source[index], **self.changes)


@pytest.fixture
def open_clips(contract, training_clips):
    def opened(source, **options):
        config = HeldOutConfig(**{"split": "all", **options})
        return held_out_clips(source, contract, training_clips.normalizer, config)

    return opened


def test_a_clip_is_what_was_recorded(source, open_clips):
    clip = open_clips(source)[2]
    episode = source[2]
    frames = episode.frames["head"].read(range(clip.start, clip.start + 13))
    assert torch.equal((clip.frames * 255).round(), torch.from_numpy(frames).permute(0, 3, 1, 2).float())
    raw = episode.robot_actions[clip.start : clip.start + 12]
    back = open_clips(source).normalizer.denormalize(clip.actions, "a")
    clipped = clip.actions.abs().numpy() >= 1
    assert np.allclose(back[~clipped], raw[~clipped], atol=1e-5)
    assert open_clips(source).keys[2] == f"{episode.uid}#{clip.start}"


@pytest.mark.parametrize(
    ("recorded", "settings", "shown"),
    [
        ((144, 192), {}, (144, 192)),  # the camera's own
        ((1080, 1920), {}, (180, 320)),  # as large as is shown
        ((32, 32), {}, (64, 64)),  # never smaller than the model's
        ((145, 193), {}, (144, 192)),  # even, for H.264
        ((480, 640), {"aspect": "crop"}, (320, 320)),
        ((144, 192), {"camera": ("head", "wrist")}, (64, 64)),  # several in one picture
    ],
)
def test_frames_to_look_at_have_the_size_of_the_camera(recorded, settings, shown):
    assert shown_size(recorded, ClipConfig(height=64, width=64, **settings)) == shown


def test_frames_to_look_at_are_those_of_the_clip(source, training_clips, contract):
    small = dataclasses.replace(contract, height=16, width=16)
    config = HeldOutConfig(split="all")
    clips = held_out_clips(source, small, training_clips.normalizer, config)
    large, clip = clips.as_recorded(2), clips[2]
    assert (large.shape[-1], clip.frames.shape[-1]) == (32, 16)
    frames = source[2].frames["head"].read(range(clip.start, clip.start + 13))
    assert torch.equal((large * 255).round(), torch.from_numpy(frames).permute(0, 3, 1, 2).float())


def test_only_held_out_episodes_are_taken(source, open_clips):
    splits = SplitConfig(val=0.3, test=0.3)
    clips = open_clips(source, split="test", splits=splits)
    uids = {record.uid for record, _ in clips.places}
    assert uids == {source[i].uid for i in range(12) if split_of(source[i].uid, splits) == "test"}
    with pytest.raises(ValueError, match=r"two_arms: no episode to evaluate in split 'test'"):
        open_clips(source, split="test", splits=SplitConfig(val=0.0, test=0.0))


def test_episodes_and_clips_are_spread_evenly(source, open_clips):
    assert [record.uid for record, _ in open_clips(source, episodes=3).places] == [
        "episode0",
        "episode6",
        "episode11",
    ]
    starts = [start for _, start in open_clips(source, episodes=1, clips_per_episode=2).places]
    assert starts == [4, 13]  # of the 18 places in 30 frames


def test_a_partner_is_another_episode_of_the_same_robot(open_clips, source, training_clips):
    clips = open_clips(source, clips_per_episode=2)
    for number in range(len(clips)):
        (own, _), (other, _) = clips.places[number], clips.places[clips.partner(number)]
        assert own.uid != other.uid
        assert own.embodiment == other.embodiment
    assert open_clips(source, episodes=1).partner(0) is None


def test_data_that_does_not_fit_the_model_is_refused_with_the_file(source, open_clips):
    with pytest.raises(ValueError, match=r"synthetic/episode0.*camera 'head' expected, found desk"):
        open_clips(Changed(source, frames={"desk": source[0].frames["head"]}))
    with pytest.raises(ValueError, match="episode0: unknown embodiment 'arm9'"):
        open_clips(Changed(source, embodiment="arm9"))
    with pytest.raises(ValueError, match=r"cannot resample 5 frames per second up to 16\.6"):
        open_clips(Changed(source, fps=5.0))
    renamed = open_clips(Changed(source, action_names=("q0", "q1", "q2", "q3")))
    with pytest.raises(ValueError, match=r"expected names \['left_x'.*got \['q0'"):
        renamed[0]
    degrees = open_clips(Changed(source, robot_actions=source[0].robot_actions * 57.3))
    with pytest.raises(ValueError, match=r"episode0: \d+% of the actions are beyond twice the range"):
        degrees[0]


def test_aspect_and_merge_are_those_of_the_model(source, contract, training_clips):
    """Wide pictures, and three recorded frames to a clip frame: cropped and summed, as in training."""
    size, config = (32, 64), HeldOutConfig(split="all", episodes=1)
    wide = dataclasses.replace(source[0].frames["head"], size=size)
    slow = Changed(source, frames={"head": wide}, fps=3 * contract.fps)
    for aspect, merge in (("crop", "sum"), ("stretch", "last")):
        own = dataclasses.replace(contract, num_frames=5, aspect=aspect, merge=merge)
        clip = held_out_clips(slow, own, training_clips.normalizer, config)[0]
        expected = ClipConfig(5, stride=3, height=32, width=32, aspect=aspect, merge=merge)
        frames, raw = cut_clip(slow[0], clip.start, expected)
        assert torch.equal((clip.frames * 255).round(), frames.float())
        assert torch.equal(clip.actions, training_clips.normalizer.normalize(raw, "a"))


def test_longer_rollouts_than_one_clip(source, open_clips):
    clip = open_clips(source, num_frames=25)[0]
    assert clip.frames.shape[0] == 25
    assert clip.actions.shape[0] == 24


def trained(source, *numbers, **splits):
    episodes = tuple(
        TrainedEpisode(f"other/{n}", source[n].embodiment, actions_hash(source[n])) for n in numbers
    )
    return TrainedOn(SplitConfig(**splits), episodes)


def test_trained_episodes_are_known_by_their_actions_under_any_name(source, contract, training_clips, caplog):
    known = trained(source, 1, 4)
    clips = held_out_clips(source, contract, training_clips.normalizer, HeldOutConfig("all"), known)
    assert "2 of 12 episodes were TRAINED ON (episode1, episode4)" in clips.overlap
    assert "TRAINED ON" in caplog.text
    few = HeldOutConfig("all", episodes=1)
    apart = held_out_clips(source, contract, training_clips.normalizer, few, known)
    assert apart.overlap == "None of these episodes was trained on."
    unknown = held_out_clips(source, contract, training_clips.normalizer, few)
    assert "does not say" in unknown.overlap


def test_episodes_are_divided_as_in_training_unless_told_otherwise(source, contract, training_clips):
    known = trained(source, 1, val=0.0, test=0.0, test_uids=("episode3", "of_another_set"))
    clips = held_out_clips(source, contract, training_clips.normalizer, HeldOutConfig(), known)
    assert [clips[i].uid for i in range(len(clips))] == ["episode3"]
    given = HeldOutConfig(splits=SplitConfig(test_uids=("episode5", "typo")))
    with pytest.raises(ValueError, match="test_uids lists 'typo'"):
        held_out_clips(source, contract, training_clips.normalizer, given, known)


def test_what_is_added_up_is_as_in_training(source, contract, training_clips):
    stats = training_clips.normalizer.stats
    robot, entry = next(iter(stats.items()))
    normalizer = ActionNormalizer({robot: dataclasses.replace(entry, deltas=entry.names)})
    slow = dataclasses.replace(contract, fps=contract.fps / 2, num_frames=5, merge="auto")
    clip = held_out_clips(source, slow, normalizer, HeldOutConfig("all"))[0]
    raw = source[0].robot_actions[clip.start : clip.start + 2].sum(0)
    expected = normalizer.normalize(raw[None], robot)[0]
    assert torch.allclose(clip.actions[0], expected, atol=1e-6)


def test_names_stand_for_episodes_whose_actions_cannot_be_compared():
    known = TrainedOn(SplitConfig(), (TrainedEpisode("episode3", "a", ""),))
    assert known.holds("episode3", "a", "12ab")
    assert not known.holds("episode3", "b", "12ab")
    later = TrainedOn(SplitConfig(val=0.3), (TrainedEpisode("x", "b", "ff"),)).after(known)
    assert later.holds("episode3", "a", "12ab")
    assert TrainedOn.from_dict(json.loads(json.dumps(later.to_dict()))) == later


class OneMissing:
    """A dataset whose second episode cannot be opened."""

    def __init__(self, source):
        self.source, self.name = source, source.name

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        if index == 1:
            raise ValueError("no video file at videos/1.mp4")
        return self.source[index]


def test_what_training_left_out_is_left_out_here(source, contract, training_clips):
    missing, normalizer = OneMissing(source), training_clips.normalizer
    known = trained(source)
    with pytest.raises(ValueError, match="no video file"):
        held_out_clips(missing, contract, normalizer, HeldOutConfig("all"), known)
    skips = dataclasses.replace(known, skips_bad=True)
    assert len(held_out_clips(missing, contract, normalizer, HeldOutConfig("all"), skips)) == 11
    assert TrainedOn.from_dict(json.loads(json.dumps(skips.to_dict()))).after(known).skips_bad
    with pytest.raises(ValueError, match="no video file"):
        held_out_clips(missing, contract, normalizer, HeldOutConfig("all", on_bad="stop"), skips)
