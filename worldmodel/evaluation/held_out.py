"""Held-out clips for evaluation, in the format of the model's contract; incompatible data is refused."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from worldmodel.checked import check_ranges
from worldmodel.data.clips import ClipConfig, clip_offsets, clip_pictures, crop_box, cut_clip
from worldmodel.data.index import EpisodeIndex, EpisodeRecord, OnBad, index_episodes
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.provenance import TrainedOn, describe_overlap
from worldmodel.data.splits import SplitConfig
from worldmodel.data.transitions import clip_transitions
from worldmodel.models.config import InputSpec
from worldmodel.types import EpisodeSource, Transitions, evenly_spread, to_unit_range

log = logging.getLogger(__name__)

LONGEST_SIDE = 320  # pixels of frames that people look at
MAX_OUTSIDE = 0.3  # largest share of action values beyond twice the training range


@dataclass(frozen=True)
class HeldOutConfig:
    """Which part of a dataset is evaluated."""

    split: Literal["val", "test", "all"] = "test"  # all: for a dataset that was not trained on
    splits: SplitConfig | None = None  # splits of the episodes; none: as in training
    episodes: int = 64  # at most this many, evenly spaced; 0 = all
    clips_per_episode: int = 1  # evenly spaced over the episode
    num_frames: int = 0  # of each clip, 1 + 4k; 0 = the length of the model's clips
    on_bad: Literal["as_trained", "stop", "skip"] = "as_trained"  # unreadable episodes: end here, or skip

    def __post_init__(self) -> None:
        check_ranges(self, clips_per_episode=(1, 100_000), num_frames=(0, 1_000_001))


@dataclass(frozen=True)
class HeldOutClip:
    """The true frames of a clip and the commanded actions."""

    uid: str  # of the episode
    source: str  # file named in messages
    start: int  # first recorded frame
    embodiment: str
    task: str
    frames: Float[Tensor, "t 3 H W"]  # RGB in [0, 1]
    actions: Float[Tensor, "n a"]  # normalized and padded
    mask: Bool[Tensor, " a"]  # False in the padding
    transitions: Transitions  # the same actions before scaling, and the camera matrices of every frame
    recorded: tuple[int, ...]  # index of each frame in the recording

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the robot's own action dimensions."""
        return self.transitions.names


class HeldOutClips:
    """Dataset of the held-out clips that a HeldOutConfig selects; each is read from disk when indexed."""

    def __init__(
        self,
        index: EpisodeIndex,
        normalizer: ActionNormalizer,
        records: Sequence[EpisodeRecord],
        count: int,
        trained_on: TrainedOn | None = None,
    ) -> None:
        self.index, self.normalizer, self.trained_on = index, normalizer, trained_on
        self.places = [
            (record, start) for record in records for start in _spread_starts(record.starts, count)
        ]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def keys(self) -> list[str]:
        """Names of the clips in result files."""
        return [f"{record.uid}#{start}" for record, start in self.places]

    @property
    def embodiments(self) -> tuple[str, ...]:
        """The robots in these clips."""
        return tuple(dict.fromkeys(record.embodiment for record, _ in self.places))

    @property
    def action_spaces(self) -> dict[str, str]:
        """Action space of each robot: commanded or measured."""
        return {name: self.normalizer.stats[name].action_space for name in self.embodiments}

    @property
    def overlap(self) -> str:
        """A sentence on whether these episodes were trained on."""
        known = self.trained_on
        records = {record.uid: record for record, _ in self.places}
        found = [
            uid
            for uid, record in records.items()
            if known is not None and known.holds(uid, record.embodiment, record.actions)
        ]
        return describe_overlap(known, found, len(records))

    def __getitem__(self, number: int) -> HeldOutClip:
        record, start = self.places[number]
        robot, episode = record.embodiment, self.index.open(record)
        if robot in self.normalizer.stats:  # sum the same dimensions as in training
            episode = replace(episode, delta_actions=self.normalizer.stats[robot].deltas)
        frames, raw = cut_clip(episode, start, self.index.config)
        _check_robot(record, self.normalizer, episode.action_space)
        actions = self.normalizer.normalize(raw, robot, episode.action_names)
        outside = self.normalizer.outside(raw, robot)
        if outside > MAX_OUTSIDE:
            raise ValueError(
                f"{record.file}: {outside:.0%} of the actions are beyond twice the range that the model "
                f"knows of {robot!r}: other units, or another robot?"
            )
        recorded = start + clip_offsets(episode.fps, self.index.config)
        return HeldOutClip(
            uid=record.uid,
            source=record.file,
            start=start,
            embodiment=robot,
            task=episode.task,
            frames=to_unit_range(frames),
            actions=actions,
            mask=self.normalizer.mask(robot),
            transitions=clip_transitions(episode, start, raw, self.index.config),
            recorded=tuple(recorded.tolist()),
        )

    def as_recorded(self, number: int) -> Float[Tensor, "t 3 H W"]:
        """The frames of a clip to look at: larger than the model's where the camera's are, for one camera."""
        record, start = self.places[number]
        episode, config = self.index.open(record), self.index.config
        positions = (start + clip_offsets(episode.fps, config)).tolist()
        height, width = shown_size(record.size, config)
        larger = replace(config, height=height, width=width)
        return to_unit_range(clip_pictures(episode, positions, larger))

    def partner(self, number: int) -> int | None:
        """The next clip of another episode of the same robot, cyclically; None if there is none."""
        own, _ = self.places[number]
        for step in range(1, len(self.places)):
            other = (number + step) % len(self.places)
            record, _ = self.places[other]
            if record.embodiment == own.embodiment and record.uid != own.uid:
                return other
        return None


def held_out_clips(
    source: EpisodeSource,
    contract: InputSpec,
    normalizer: ActionNormalizer,
    config: HeldOutConfig,
    trained_on: TrainedOn | None = None,
) -> HeldOutClips:
    """Index all episodes and select the clips; `trained_on` is the provenance stored with the model."""
    clip = contract.clip_config(num_frames=config.num_frames or None, step=1)
    splits = config.splits or (trained_on.splits if trained_on else None)
    # The model's own lists name episodes of its training data, which need not be in this source.
    is_given = config.splits is not None
    as_trained: OnBad = trained_on.on_bad if trained_on else "stop"
    on_bad = as_trained if config.on_bad == "as_trained" else config.on_bad
    index = index_episodes([source], clip, splits, on_bad, uids_must_exist=is_given, verify="once")
    records = index.records if config.split == "all" else index.of(config.split)
    if not records:
        raise ValueError(
            f"{source.name}: no episode to evaluate in split {config.split!r}: {index.summary()}. Set "
            "held_out.split=all for a dataset that was not trained on, or name episodes: "
            "held_out.splits.test_uids=[...]"
        )
    for record in records:
        _check_robot(record, normalizer)
    if config.episodes:
        records = tuple(records[number] for number in evenly_spread(len(records), config.episodes))
    clips = HeldOutClips(index, normalizer, records, config.clips_per_episode, trained_on)
    if "TRAINED ON" in clips.overlap:
        log.warning("%s", clips.overlap)
    return clips


def _check_robot(record: EpisodeRecord, normalizer: ActionNormalizer, action_space: str = "") -> None:
    try:
        normalizer.check_space(record.embodiment, action_space)
    except ValueError as error:
        raise ValueError(f"{record.file}: {error}") from error


def shown_size(recorded: tuple[int, int], clip: ClipConfig) -> tuple[int, int]:
    """Even height and width: the camera's own up to LONGEST_SIDE, where that is larger than the clip's."""
    if isinstance(clip.camera, tuple):
        return clip.height, clip.width
    if clip.aspect == "crop":
        *_, height, width = crop_box(*recorded, clip.height / clip.width)
        factor = max(1, min(height // clip.height, LONGEST_SIDE // max(clip.height, clip.width)))
        return factor * clip.height, factor * clip.width
    shrink = min(1.0, LONGEST_SIDE / max(recorded))
    height, width = (2 * round(side * shrink / 2) for side in recorded)
    return (height, width) if height > clip.height and width > clip.width else (clip.height, clip.width)


def _spread_starts(starts: range, count: int) -> list[int]:
    """`count` starts in the middle of as many equal parts; fewer if there are fewer starts."""
    count = min(count, len(starts))
    return [starts[int((part + 0.5) * len(starts) / count)] for part in range(count)]
