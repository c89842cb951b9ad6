"""One pass over the episodes: what each holds, its split, the action statistics, and what is wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from worldmodel.data.action_deltas import describe_deltas
from worldmodel.data.action_spaces import describe_action_space
from worldmodel.data.cameras import CameraChoice, choose_camera, find_views
from worldmodel.data.clips import ClipConfig, clip_starts, episode_actions
from worldmodel.data.normalize import ActionNormalizer, ActionStats, ActionStatsBuilder
from worldmodel.data.splits import Split, SplitConfig, check_listed, split_of
from worldmodel.data.trained_on import actions_hash
from worldmodel.types import Episode, EpisodeSource

OnBad = Literal["stop", "skip"]  # an episode that cannot be read ends the run, or is listed and left out


@dataclass(frozen=True)
class EpisodeRecord:
    """All that is remembered of an episode; its arrays stay on disk."""

    source: int  # position of its dataset in the list of sources
    episode: int  # position inside that dataset
    uid: str
    file: str
    embodiment: str
    starts: range  # first recorded frame of each clip
    split: Split
    fps: float  # frames per second of the recording
    camera: str  # name of the camera that clips show
    size: tuple[int, int]  # height and width of its (first) pictures in the recording, pixels
    actions: str = ""  # hash of its actions
    task: str = ""


@dataclass(frozen=True)
class BadEpisode:
    """An episode that was left out, and why."""

    where: str  # the file, or dataset[position] when not even that is known
    reason: str


@dataclass(frozen=True)
class EpisodeIndex:
    """The readable episodes of all sources, in order."""

    sources: tuple[EpisodeSource, ...]
    config: ClipConfig
    records: tuple[EpisodeRecord, ...]
    stats: Mapping[str, ActionStats]  # per embodiment, of the training split
    skipped: tuple[BadEpisode, ...]
    too_short: Mapping[str, int]  # frames of each good episode that is shorter than one clip, by file
    cameras: Mapping[CameraChoice, int] = field(default_factory=dict)  # in how many episodes each was chosen

    def of(self, split: Split) -> tuple[EpisodeRecord, ...]:
        """The episodes of one split."""
        return tuple(record for record in self.records if record.split == split)

    def normalizer(self, width: int | None = None) -> ActionNormalizer:
        """A normalizer fitted to the training split, embodiments sorted by name."""
        if not self.stats:
            raise ValueError(f"no training episodes to take action statistics from; {self.summary()}")
        return ActionNormalizer(self.stats, width)

    def open(self, record: EpisodeRecord) -> Episode:
        """Open an episode of the index again."""
        return self.sources[record.source][record.episode]

    def summary(self) -> str:
        """One line of counts."""
        splits = ", ".join(
            f"{split} {sum(len(r.starts) for r in self.of(split))} clips of {len(self.of(split))} episodes"
            for split in ("train", "val", "test")
        )
        return f"{splits}; {len(self.skipped)} unreadable, {len(self.too_short)} shorter than a clip"

    def camera_summary(self) -> str:
        """One line: which camera is used, and why."""
        lines = [f"camera {choice.name} ({choice.reason})" for choice in self.cameras]
        if len(lines) > 1:
            lines = [f"{line} in {n} episodes" for line, n in zip(lines, self.cameras.values(), strict=True)]
        return "; ".join(lines)


def index_episodes(
    sources: Sequence[EpisodeSource],
    config: ClipConfig | None = None,
    splits: SplitConfig | None = None,
    on_bad: OnBad = "stop",
    decode_all: bool = False,  # also decode every frame, so that unreadable pictures are found now
    uids_must_exist: bool = True,  # refuse splits that list episodes which no source has
) -> EpisodeIndex:
    """Open every episode once and note what training needs to know about it."""
    config, splits = config or ClipConfig(), splits or SplitConfig()
    records: list[EpisodeRecord] = []
    skipped: list[BadEpisode] = []
    too_short: dict[str, int] = {}
    builders: dict[str, ActionStatsBuilder] = {}
    cameras: Counter[CameraChoice] = Counter()
    uids: set[str] = set()
    for source_number, source in enumerate(sources):
        for number in range(len(source)):
            try:
                episode = source[number]
                uids.add(episode.uid)
                check_episode(episode, config, decode_all)
                record = _record(episode, source_number, number, config, splits)
                if record.starts and record.split == "train":
                    _add_actions(builders, episode, config)
            except (ValueError, OSError) as error:
                if on_bad == "stop":
                    raise ValueError(str(error)) from error
                skipped.append(BadEpisode(f"{source.name}[{number}]", str(error)))
                continue
            if record.starts:
                records.append(record)
                cameras[choose_camera(episode, config.camera)] += 1
            else:
                too_short[record.file] = episode.num_frames
    # An episode that cannot be opened has no name: it may be one of those listed.
    if uids_must_exist and not skipped:
        check_listed(splits, uids)
    stats = {name: builders[name].stats() for name in sorted(builders)}
    return EpisodeIndex(tuple(sources), config, tuple(records), stats, tuple(skipped), too_short, cameras)


def _add_actions(builders: dict[str, ActionStatsBuilder], episode: Episode, config: ClipConfig) -> None:
    deltas = episode.delta_actions or ()
    new = ActionStatsBuilder(episode.action_names, episode.action_space, deltas)
    builder = builders.setdefault(episode.embodiment, new)
    if builder.action_space != episode.action_space:
        raise ValueError(
            f"{episode.source}: actions are {describe_action_space(episode.action_space)}, other episodes of "
            f"{episode.embodiment!r} hold {describe_action_space(builder.action_space)}"
        )
    if builder.deltas != deltas:
        raise ValueError(
            f"{episode.source}: actions are {describe_deltas(deltas, episode.action_names)}, those of other "
            f"episodes of {episode.embodiment!r} {describe_deltas(builder.deltas, builder.names)}; set "
            "action_deltas in a mapping (data.mapping, --mapping)"
        )
    builder.add(episode_actions(episode, config), episode.action_names, episode.source)


def check_episode(episode: Episode, config: ClipConfig, decode_all: bool = False) -> None:
    """Refuse an episode whose parts do not fit together."""
    where, actions = episode.source, episode.robot_actions
    readers = find_views(episode, config.camera)
    for reader in readers:
        if len(reader) != episode.num_frames:
            raise ValueError(
                f"{where}: {len(actions)} actions need {episode.num_frames} frames, camera has {len(reader)}"
            )
    if len(episode.action_names) != actions.shape[1]:
        raise ValueError(
            f"{where}: {actions.shape[1]} action dimensions, but {len(episode.action_names)} names"
        )
    if not np.isfinite(actions).all():
        row, column = np.argwhere(~np.isfinite(actions))[0]
        name = episode.action_names[column]
        raise ValueError(f"{where}: action {row} holds {actions[row, column]} in dimension {name!r}")
    if not episode.fps > 0:
        raise ValueError(f"{where}: frames per second must be positive, got {episode.fps}")
    for reader in readers if decode_all else ():
        for first in range(0, len(reader), 64):
            reader.read(range(first, min(first + 64, len(reader))))


def _record(
    episode: Episode, source: int, number: int, config: ClipConfig, splits: SplitConfig
) -> EpisodeRecord:
    return EpisodeRecord(
        source=source,
        episode=number,
        uid=episode.uid,
        file=episode.source,
        embodiment=episode.embodiment,
        starts=clip_starts(episode.num_frames, episode.fps, config),
        split=split_of(episode.uid, splits),
        fps=episode.fps,
        camera=choose_camera(episode, config.camera).name,
        size=find_views(episode, config.camera)[0].size,
        actions=actions_hash(episode),
        task=episode.task,
    )
